"""Many activities cost no more each than a few do: awaited by one workflow, or by one workflow each."""

from __future__ import annotations

import asyncio
import gc
import math
import os
import time
from collections.abc import Awaitable, Callable

import pytest

from perdure import Context, Engine, RunFailed, activity, workflow
from perdure.errors import ChildLimit
from tests.stage import Stage

WHOLE = bool(os.environ.get("PERDURE_PROVE"))
FEW, MANY = (1_000, 10_000) if WHOLE else (50, 500)
#: How much more one of many may cost than one of a few.
AT_MOST = 2.0


@activity("scale.one.v1")
async def one(number: int) -> int:
    return number


@workflow("scale.gather.v1")
async def gathering(ctx: Context, count: int) -> int:
    return sum(await asyncio.gather(*(ctx.call(one(number)) for number in range(count))))


async def call_one(ctx: Context, number: int) -> int:
    return await ctx.call(one(number))


@workflow("scale.map.v1")
async def mapping(ctx: Context, count: int) -> int:
    return sum(await ctx.map(call_one, range(count)))


@workflow("scale.single.v1")
async def single(ctx: Context, number: int) -> int:
    return await ctx.call(one(number))


async def gather(engine: Engine, count: int) -> int:
    return await (await engine.start(gathering(count))).result("1h")


async def map_(engine: Engine, count: int) -> int:
    return await (await engine.start(mapping(count))).result("1h")


async def each_by_itself(engine: Engine, count: int) -> int:
    runs = await engine.start_many([single(number) for number in range(count)])
    return sum(await asyncio.gather(*(run.result("1h") for run in runs)))


async def cost(engine: Engine, work: Callable[[Engine, int], Awaitable[int]], count: int) -> float:
    """The processor time of one of so many, which others on the machine hardly add to; in microseconds."""
    gc.collect()
    before = time.process_time()
    assert await work(engine, count) == count * (count - 1) // 2
    return (time.process_time() - before) / count * 1e6


@pytest.mark.timeout(3600 if WHOLE else 600)
@pytest.mark.parametrize("work", [gather, map_, each_by_itself], ids=["gather", "map", "each"])
async def test_one_of_many_activities_costs_as_much_as_one_of_few(
    stage: Stage, work: Callable[[Engine, int], Awaitable[int]]
) -> None:
    engine = stage.engine(gathering, mapping, single, one)
    async with engine.worker():
        # What only the first of all has to do is not what this is about.
        await work(engine, 50)
        few = many = math.inf
        # The least of five, because the garbage collector slows down some of them by chance.
        for _ in range(5):
            few = min(few, await cost(engine, work, FEW))
            many = min(many, await cost(engine, work, MANY))
            if many <= AT_MOST * few:
                break
    assert many <= AT_MOST * few, f"{few:.0f} us for one of {FEW}, {many:.0f} us for one of {MANY}"


async def test_a_run_has_as_many_activities_under_way_as_it_may_and_not_one_more(on_disk: Stage) -> None:
    engine = on_disk.engine(gathering, one)
    async with engine.worker(open_children=200):
        assert await gather(engine, 200) == 19_900
        with pytest.raises(RunFailed) as caught:
            await gather(engine, 201)
    assert isinstance(caught.value.__cause__, ChildLimit)
