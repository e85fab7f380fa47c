"""A shop whose workers are watched by their metrics; `SHOP_FOLDER` has its signs, `SHOP_URL` names its database."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from perdure import Context, Engine, Limit, Retry, activity, step, workflow

FOLDER = Path(os.environ["SHOP_FOLDER"])


async def sign(name: str) -> None:
    """Wait for a sign of the test."""
    while not (FOLDER / name).exists():  # noqa: ASYNC110 - the sign comes from another process
        await asyncio.sleep(0.01)


def nth_call(name: str) -> int:
    """Count the calls of a function, in whatever process."""
    with (FOLDER / f"{name}.calls").open("a") as calls:
        calls.write("x")
    return len((FOLDER / f"{name}.calls").read_text())


@step(retry=Retry.fixed("5ms", attempts=5))
async def flaky() -> None:
    if nth_call("flaky") <= 2:
        raise OSError("not yet")


@step(retry=Retry.fixed("5ms", attempts=2))
async def hopeless() -> None:
    raise OSError("never")


@step
async def quick() -> None:
    pass


@step
async def hang() -> None:
    (FOLDER / "hanging").write_text(str(os.getpid()))
    await sign("go")


@activity("charge", retry=Retry.fixed("5ms", attempts=3))
async def charge() -> str:
    if nth_call("charge") == 1:
        raise OSError("the bank is closed")
    return "paid"


@workflow("order")
async def order(ctx: Context) -> str:
    await ctx.step(flaky)
    # Long enough for the run to park although the machine is busy.
    await ctx.sleep(2.0)
    return await ctx.call(charge())


@workflow("hopeless")
async def fails(ctx: Context) -> None:
    await ctx.step(hopeless)


@workflow("patient")
async def patient(ctx: Context) -> None:
    await ctx.sleep(3600)


@workflow("held")
async def held(ctx: Context) -> None:
    await ctx.step(quick)
    await ctx.step(hang)


@workflow("terminated")
async def terminated(ctx: Context) -> None:
    await ctx.step(hang)


@workflow("broken")
async def broken(ctx: Context) -> None:
    raise NameError("this code is broken")


@workflow("tick")
async def tick(ctx: Context) -> None:
    pass


@workflow("limited", limit=Limit("one", concurrency=1))
async def limited(ctx: Context) -> None:
    await ctx.step(hang)


engine = Engine(os.environ["SHOP_URL"], [order, fails, patient, held, terminated, broken, tick, limited, charge])
