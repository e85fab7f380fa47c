"""A plain function reads the clock; it is a step, because the workflow hands it to `ctx.step`."""

from datetime import UTC, datetime

from perdure import Context, workflow
from perdure.testing import Environment


def opening_hours() -> tuple[int, int]:
    return 8, 18


async def read_clock() -> int:
    return datetime.now(UTC).hour


async def ring(customer: str) -> str:
    return f"rang {customer}"


@workflow("samples.right.callback.v1")
async def call_back(ctx: Context, customer: str) -> str:
    opens, closes = opening_hours()
    hour = await ctx.step(read_clock)
    if not opens <= hour < closes:
        await ctx.sleep("14h")
    return await ctx.step(ring, customer)


WORKFLOWS = [call_back]


async def drive(env: Environment) -> object:
    run = await env.start(call_back("ann"))
    await env.advance("14h")
    return await run.result()
