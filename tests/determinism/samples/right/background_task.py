"""A heartbeat in a task beside the work, which is cancelled and awaited at the end."""

import asyncio
from contextlib import suppress

from perdure import Context, workflow
from perdure.testing import Environment


async def train(epochs: int) -> str:
    return f"trained {epochs} epochs"


async def tell_progress(ctx: Context) -> None:
    minutes = 0
    while True:
        await ctx.sleep("1m")
        minutes += 1
        ctx.publish("minutes", minutes)


@workflow("samples.right.training.v1")
async def training(ctx: Context, epochs: int) -> str:
    progress = asyncio.create_task(tell_progress(ctx))
    watchdog = asyncio.create_task(tell_progress(ctx))
    try:
        await ctx.sleep("10m")
        return await ctx.step(train, epochs)
    finally:
        progress.cancel()
        watchdog.cancel()
        with suppress(asyncio.CancelledError):
            await progress
        try:
            await watchdog
        except asyncio.CancelledError:
            pass


WORKFLOWS = [training]


async def drive(env: Environment) -> object:
    run = await env.start(training(3))
    await env.advance("11m")
    return await run.result()
