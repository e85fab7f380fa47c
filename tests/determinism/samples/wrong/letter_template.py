"""A class that renders letters reads its template from disk each time; a workflow uses it."""

from pathlib import Path

from perdure import Context, workflow
from perdure.testing import Environment


class Letters:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def render(self, name: str, **values: str) -> str:
        template = (self.folder / f"{name}.txt").read_text()  # mistake
        return template.format(**values)


letters = Letters(Path(__file__).parent)


async def post(address: str, text: str) -> str:
    return f"posted {len(text)} characters to {address}"


@workflow("samples.letter.v1")
async def remind_in_writing(ctx: Context, customer: str, address: str) -> list[str]:
    posted: list[str] = []
    for level in ("friendly", "firm"):
        text = letters.render("letter", customer=customer, level=level)
        posted.append(await ctx.step(post, address, text))
        await ctx.sleep("14d")
    return posted


WORKFLOWS = [remind_in_writing]


async def drive(env: Environment) -> object:
    run = await env.start(remind_in_writing("ann", "Main Street 1"))
    await env.advance("30d")
    return await run.result()
