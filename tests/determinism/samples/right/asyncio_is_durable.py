"""asyncio's own sleeps, timeouts and races, which the run's loop replays."""

import asyncio

from perdure import Context, workflow
from perdure.testing import Environment


async def ask(shop: str, item: str) -> int:
    return 100 * len(shop) + len(item)


async def order(shop: str) -> str:
    return f"ordered at {shop}"


@workflow("samples.right.cheapest.v1")
async def cheapest(ctx: Context, item: str, shops: list[str]) -> str:
    started = asyncio.get_running_loop().time()
    asked = {asyncio.ensure_future(ctx.step(ask, shop, item)): shop for shop in shops}
    try:
        async with asyncio.timeout(60):
            done, pending = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
    except TimeoutError:
        return "no shop answered"
    for task in pending:
        task.cancel()
    best = min(done, key=lambda task: task.result())
    await asyncio.sleep(3600)
    took = asyncio.get_running_loop().time() - started
    return f"{await ctx.step(order, asked[best])} after {took >= 3600}"


WORKFLOWS = [cheapest]


async def drive(env: Environment) -> object:
    run = await env.start(cheapest("pen", ["north", "south-west"]))
    await env.advance("1h")
    return await run.result()
