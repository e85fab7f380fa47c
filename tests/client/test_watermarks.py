"""Producers are held back where enough waits already."""

from __future__ import annotations

import asyncio
import time
from contextlib import closing
from pathlib import Path

import pytest

from perdure import Context, Engine, Every, Overloaded, UsageError, Watermark, activity, workflow
from perdure.client.watermarks import DEPTH_FRESH
from perdure.testing import Environment
from tests.stage import Stage
from tests.worker.damage import damage

pytestmark = pytest.mark.every_database


@activity("press.quick.v1", queue="presses")
async def quick() -> int:
    return 1


@workflow("press.parent.v1")
async def parent(ctx: Context) -> list[int]:
    return await asyncio.gather(*(ctx.call(quick()) for _ in range(5)))


async def test_starts_are_refused_from_the_high_mark_and_told_why(stage: Stage) -> None:
    engine = stage.engine(quick, watermarks=[Watermark(high=3, queue="presses")])
    for _ in range(3):
        await engine.start(quick())
    with pytest.raises(Overloaded, match="'presses' has 3 runs or more that wait") as refused:
        await engine.start(quick())
    assert (refused.value.depth, refused.value.high) == (3, 3)
    await engine.start(quick(), queue="another")
    with pytest.raises(Overloaded):
        await engine.start_many([quick(), quick()])
    assert await engine.queues.watermarks.depth(queue="presses") == 3


async def test_a_mark_in_the_database_holds_for_everybody(stage: Stage) -> None:
    engine = stage.engine(quick, watermarks=[Watermark(high=1, type="press.quick.v1")])
    await engine.queues.watermarks.set(Watermark(high=2, type="press.quick.v1"))
    for _ in range(2):
        await engine.start(quick())
    with pytest.raises(Overloaded):
        await engine.start(quick())
    assert [mark.high for mark in await engine.queues.watermarks.list()] == [2]
    await engine.queues.watermarks.set(Watermark(high=3, type="press.quick.v1"))
    await engine.queues.watermarks.remove(type="press.quick.v1")
    with pytest.raises(Overloaded):
        await engine.start(quick())


async def test_who_may_wait_goes_on_below_the_low_mark() -> None:
    mark = Watermark(high=10, low=5, when_full="wait", queue="presses")
    async with Environment([quick], queues=["presses"]) as env:
        await env.engine.queues.pause(queue="presses")
        await env.engine.queues.watermarks.set(mark)
        await env.engine.start_many([quick() for _ in range(10)])
        waiting = asyncio.ensure_future(env.engine.start(quick()))
        await env.advance("5s")
        assert not waiting.done()
        await env.engine.queues.resume(queue="presses")
        await env.advance("3s")
        assert await (await waiting).result() == 1


async def test_between_two_counts_ones_own_starts_are_added(on_disk: Stage) -> None:
    engine = on_disk.engine(quick, watermarks=[Watermark(high=100, queue="presses")])
    asked: list[str] = []
    store = on_disk.store
    assert store is not None
    count = store.depth

    async def depth(kind: str, name: str, limit: int) -> int:
        asked.append(name)
        assert limit == 101
        return await count(kind, name, limit)

    store.depth = depth  # type: ignore[method-assign] # counts the calls, and asks the store
    began = time.monotonic()
    for _ in range(100):
        await engine.start(quick())
    with pytest.raises(Overloaded):
        await engine.start(quick())
    assert len(asked) - 1 <= (time.monotonic() - began) / DEPTH_FRESH


async def test_children_and_schedules_are_not_held_back() -> None:
    async with Environment([quick, parent], queues=["default", "presses"]) as env:
        await env.engine.queues.watermarks.set(Watermark(high=1, queue="presses"))
        run = await env.engine.start(parent())
        await env.engine.schedules.create("s", quick(), Every("1s"), overlap="allow")
        await env.advance("5s")
        assert await run.result() == [1] * 5
        assert len((await env.engine.runs.list(type=quick.type)).runs) == 10


def test_a_transaction_is_refused_and_never_waits(tmp_path: Path) -> None:
    import sqlite3

    mark = Watermark(high=1, queue="presses", when_full="wait")
    with Engine(f"sqlite:///{tmp_path}/press.db", [quick], watermarks=[mark]).blocking() as engine:
        engine.start(quick())
        engine.queues.watermarks.set(Watermark(high=1, queue="presses", when_full="wait"))
        assert [one.high for one in engine.queues.watermarks.list()] == [1]
        with closing(sqlite3.connect(tmp_path / "press.db")) as connection, connection:
            connection.execute("BEGIN")
            with pytest.raises(Overloaded):
                engine.start(quick(), connection=connection)
        connection.close()
        assert engine.queues.watermarks.depth(queue="presses") == 1
        engine.queues.watermarks.remove(queue="presses")


def test_what_makes_no_sense_is_refused() -> None:
    for wrong in ({"high": 5}, {"high": 5, "queue": "q", "type": "t"}, {"high": 0, "queue": "q"}):
        with pytest.raises(UsageError):
            Watermark(**wrong)
    with pytest.raises(UsageError, match="low"):
        Watermark(high=5, low=6, queue="q")
    with pytest.raises(UsageError, match="when_full"):
        Watermark(high=5, queue="q", when_full="cry")


async def test_the_depth_of_a_queue_counts_runs_that_are_pinned_to_a_build(stage: Stage) -> None:
    engine = stage.engine(quick)
    for number in range(4):
        await engine.start(quick(), id=f"r{number}", queue="presses" if number else "presses-x")
    await damage(stage, "UPDATE perdure_runs SET queue = 'presses~build-1' WHERE id IN ('r1', 'r2')")
    assert await engine.queues.watermarks.depth(queue="presses") == 3
    assert await engine.queues.watermarks.depth(queue="presses", limit=2) == 2
