"""A condition on an operation instead of on its result: it is always true."""

from perdure import Context, step, workflow
from perdure.testing import Environment


@step(timeout="5s")
async def is_suspicious(order: str, cents: int) -> bool:
    return cents > 100_000


async def hold(order: str) -> str:
    return f"{order} is on hold"


async def release(order: str) -> str:
    return f"{order} is on its way"


@workflow("samples.fraud.v1")
async def screen(ctx: Context, order: str, cents: int) -> str:
    if cents == 0:
        return await ctx.step(release, order)
    if ctx.step(is_suspicious, order, cents):  # type: ignore[truthy-bool]  # mistake
        return await ctx.step(hold, order)
    return await ctx.step(release, order)


WORKFLOWS = [screen]


async def drive(env: Environment) -> object:
    run = await env.start(screen("o-1", 500))
    return await run.result()
