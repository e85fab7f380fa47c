"""Work for the tests of servers that have lost their last commits: a bit of everything that a run can wait for.

Every value follows from the input alone, so that a result is right or wrong however often its steps were executed.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

from perdure import Context, Engine, Every, Handle, Limit, Singleton, activity, workflow
from perdure.workflow.discover import Definable
from tests.store.user_connections.tables import execute

STEPS = 4
#: With fewer at a time, most of the time of a promotion is spent with waiting for one's turn.
AT_ONCE = 2 if os.environ.get("PERDURE_PROVE") else 4


async def double(value: int) -> int:
    await asyncio.sleep(0.002)
    return 2 * value


async def noted(connection: Any, value: int) -> int:
    await execute(connection, f"INSERT INTO mine VALUES ({value})")
    return value + 1


@activity("losses.guarded.v1", limit=Limit("losses", concurrency=AT_ONCE))
async def guarded(value: int) -> int:
    await asyncio.sleep(0.002)
    return value + 10


@workflow("losses.child.v1")
async def child(ctx: Context, value: int) -> int:
    value = await ctx.step(double, value)
    await ctx.sleep(0.01)
    return await ctx.call(guarded(value))


@workflow("losses.order.v1")
async def order(ctx: Context, value: int) -> list[int]:
    seen = [value]
    for _ in range(STEPS):
        seen.append(await ctx.step(double, seen[-1]))
        ctx.emit("seen", seen[-1])
    seen += await asyncio.gather(ctx.call(child(value)), ctx.call(child(value + 1)))
    await ctx.sleep(0.01)
    seen.append(await ctx.receive("go", int))
    seen.append(await ctx.transaction(noted, value))
    seen.append(await ctx.step(double, seen[-1]))
    return seen


def expected(value: int) -> list[int]:
    """The result of an order."""
    steps = [value * 2**number for number in range(STEPS + 1)]
    return [*steps, 2 * value + 10, 2 * value + 12, value, value + 1, 2 * value + 2]


@workflow("losses.tick.v1")
async def tick(ctx: Context) -> int:
    return await ctx.step(double, 1)


@workflow("losses.alone.v1", singleton=Singleton("alone", policy="queue"))
async def alone(ctx: Context, value: int) -> int:
    return await ctx.step(double, value)


WORKFLOWS: list[Definable] = [order, child, guarded, tick, alone]


async def request(engine: Engine, name: str, value: int) -> tuple[Handle[list[int]], Handle[int]]:
    """Start an order and one that is alone, and say go; saying it again changes nothing."""
    one = await engine.start(order(value), id=f"order-{name}")
    await one.send("go", value, key="go")
    return one, await engine.start(alone(value), id=f"alone-{name}")


async def schedule(engine: Engine) -> None:
    """Something by the clock, too."""
    await engine.schedules.create("tick", tick(), Every("500ms"), replace=True)
