"""`ctx.map` over a function that does I/O, and over one that takes the context."""

import os
import time

from perdure import Context, workflow
from perdure.testing import Environment


def resize(name: str) -> str:
    time.sleep(0.001)
    return f"{name} resized by {os.getpid() > 0}"


async def publish(name: str) -> str:
    return f"{name} published"


async def handle(ctx: Context, name: str) -> str:
    await ctx.sleep("1s")
    return await ctx.step(publish, name)


async def refresh(ctx: Context) -> str:
    return await ctx.step(publish, "index")


@workflow("samples.right.gallery.v1")
async def gallery(ctx: Context, names: list[str]) -> list[str]:
    resized = await ctx.map(resize, names, limit=2)
    published = await ctx.map(handle, names)
    joined = await ctx.join({"index": refresh, "feed": lambda ctx: ctx.step(publish, "feed")})
    return [*resized, *published, *joined.values()]


WORKFLOWS = [gallery]


async def drive(env: Environment) -> object:
    run = await env.start(gallery(["a", "b"]))
    await env.advance("5s")
    return await run.result()
