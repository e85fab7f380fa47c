"""Messages under names that the code does not ask for."""

from __future__ import annotations

from perdure import Context, Status, workflow
from tests.helpers import eventually
from tests.stage import Stage, until, until_recorded


@workflow("unread.approval.v1")
async def approval(ctx: Context) -> str:
    return await ctx.receive("approval", str)


async def test_a_misspelt_name_is_accepted_and_why_tells_it(stage: Stage) -> None:
    engine = stage.engine(approval)
    async with engine.worker():
        run = await engine.start(approval())
        await until(run, Status.WAITING)
        await run.send("aproval", "yes")
        await run.send("aproval", "yes!")
        await run.send("other", "yes")
        await until_recorded(run, 3)

        async def told() -> bool:
            return "has not asked for so far: 'aproval' (2), 'other'." in await run.why()

        await eventually(told, saying="the unread names being told")
        assert "Was 'approval' meant by 'aproval'?" in await run.why()
        waits = (await run.report()).waits
        assert waits is not None
        assert waits.unread == {"aproval": 2, "other": 1}
        await run.send("approval", "at last")
        assert await run.result("20s") == "at last"
