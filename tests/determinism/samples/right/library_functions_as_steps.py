"""Functions of the standard library are good steps; what they return is recorded."""

import functools
import os
import random
import time
from pathlib import Path

from perdure import Context, workflow
from perdure.testing import Environment


async def seal(stamp: float, lot: float, size: int) -> str:
    return f"{stamp > 0} {lot < 1} {size > 0}"


@workflow("samples.right.library.v1")
async def stamp(ctx: Context) -> str:
    now = await ctx.step(time.time)
    lot = await ctx.step(random.random)
    home = await ctx.step(os.getcwd)
    size = await ctx.options(name="size").step(functools.partial(file_size, __file__))
    waited = ctx.options(name="nap", timeout="5s").step(time.sleep, 0.001)
    await waited
    return f"{await ctx.step(seal, now, lot, size)} {Path(home).name != ''}"


def file_size(path: str) -> int:
    return Path(path).stat().st_size


WORKFLOWS = [stamp]


async def drive(env: Environment) -> object:
    run = await env.start(stamp())
    return await run.result()
