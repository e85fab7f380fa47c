"""The function is called first, and its result is handed to the step."""

from dataclasses import dataclass

from perdure import Context, workflow
from perdure.testing import Environment


@dataclass
class Refund:
    order: str
    cents: int


def refund(given: Refund) -> str:
    return f"refunded {given.cents} of {given.order}"


async def notify(text: str) -> None:
    """Send a mail."""


@workflow("samples.refund.v1")
async def give_back(ctx: Context, given: Refund) -> str:
    done: str = await ctx.step(refund(given))  # type: ignore[call-overload]  # mistake
    await ctx.step(notify, done)
    return done


WORKFLOWS = [give_back]


async def drive(env: Environment) -> object:
    run = await env.start(give_back(Refund("o-1", 500)))
    await env.advance("1h")
    return await run.result()
