"""Runs that are moved to another worker, and sleeps that end at another time than they were to."""

from __future__ import annotations

import asyncio
import datetime

import pytest

from perdure import Context, RunFinished, RunNotFound, Status, UsageError, workflow
from perdure.admin import Reason, RecordKind
from perdure.testing import Environment
from perdure.worker.claiming import claimer
from tests.helpers import eventually
from tests.stage import Stage, until, until_recorded


@workflow("move.listen.v1")
async def listening(ctx: Context) -> str:
    return await ctx.receive("word", str)


@workflow("move.sleep.v1")
async def sleeping(ctx: Context) -> str:
    await ctx.sleep("30d")
    return ctx.now().isoformat()


async def test_an_evicted_run_goes_to_another_worker_when_its_step_has_ended(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    # In the usual two seconds a busy machine may not let the other worker claim.
    monkeypatch.setattr(claimer, "AVOID_RECLAIM", 3600.0)
    calls: list[int] = []

    async def tick(number: int) -> None:
        calls.append(number)
        await asyncio.sleep(0.002)

    @workflow("move.steps.v1")
    async def ticking(ctx: Context) -> None:
        for number in range(1_000_000):
            await ctx.step(tick, number)

    engine = stage.engine(ticking, audit="full")
    first, second = engine.worker(), engine.worker()
    async with first:
        run = await engine.start(ticking())
        await until_recorded(run, 1)
        async with second:
            assert await run.evict()

            async def moved() -> bool:
                return (await run.info()).worker == second.id

            await eventually(moved, saying="the run being taken by the other worker")
            await until_recorded(run, len(await run.history()) + 2)
            await run.cancel()
            await until(run, Status.CANCELLED)
            events = [(event.kind, event.actor) for event in await run.events()]
    assert [actor for kind, actor in events if kind in ("started", "claimed")] == [first.id, second.id]
    assert "evicted" in [kind for kind, _ in events]
    # Its steps ended before it went: none was repeated.
    assert calls == sorted(set(calls))


async def test_an_evicted_run_goes_on_where_it_is_if_there_is_no_other_worker(stage: Stage) -> None:
    calls: list[int] = []

    async def tick(number: int) -> None:
        calls.append(number)
        await asyncio.sleep(0.002)

    @workflow("move.alone.v1")
    async def ticking(ctx: Context) -> None:
        for number in range(1_000_000):
            await ctx.step(tick, number)

    engine = stage.engine(ticking, audit="full")
    async with engine.worker():
        run = await engine.start(ticking())
        await until_recorded(run, 1)
        assert await run.evict()

        async def again() -> bool:
            return "claimed" in [event.kind for event in await run.events()]

        await eventually(again, saying="the run being taken again")
        await until_recorded(run, len(await run.history()) + 2)
        await run.cancel()
        await until(run, Status.CANCELLED)
    assert calls == sorted(set(calls))


async def test_a_step_that_does_not_end_keeps_an_evicted_run_only_for_so_long(on_disk: Stage) -> None:
    entered = asyncio.Event()
    ended: list[str] = []

    async def hold() -> None:
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")

    @workflow("move.stuck.v1")
    async def stuck(ctx: Context) -> None:
        await ctx.step(hold)

    engine = on_disk.engine(stuck)
    async with engine.worker(grace="20ms"):
        run = await engine.start(stuck())
        await entered.wait()
        entered.clear()
        assert await run.evict()
        await entered.wait()
        await run.cancel()
        await until(run, Status.CANCELLED)
    assert ended == ["cancelled", "cancelled"]


async def test_a_run_that_no_worker_holds_is_evicted_from_memory(stage: Stage) -> None:
    taken_up: list[str] = []

    @workflow("move.memory.v1")
    async def remembered(ctx: Context) -> str:
        taken_up.append("anew")
        return await ctx.receive("word", str)

    engine = stage.engine(remembered)
    async with engine.worker():
        run = await engine.start(remembered())
        await until(run, Status.WAITING)
        assert not await run.evict()
        await run.send("word", "here")
        assert await run.result("20s") == "here"
        assert not await run.evict()
    assert taken_up == ["anew", "anew"]


async def test_a_sleeping_run_is_woken_now_and_replays_as_it_was_woken(stage: Stage) -> None:
    @workflow("move.two.v1")
    async def twice(ctx: Context) -> str:
        await asyncio.gather(asyncio.sleep(3 * 86400), ctx.sleep("30d"))
        return await ctx.receive("word", str)

    engine = stage.engine(twice)
    run = await engine.start(twice())
    async with engine.worker():
        await until(run, Status.WAITING)
        await run.wake()
        await until_recorded(run, 2)
        await until(run, Status.WAITING)
        await run.wake()
        await until_recorded(run, 4)
        await until(run, Status.WAITING)
        assert (await run.info()).reason is Reason.MESSAGE
    kinds = [(record.kind, record.location) for record in await run.history()]
    assert kinds == [
        (RecordKind.WAKE, "sleep#2"),
        (RecordKind.TIMER, "sleep#2"),
        (RecordKind.WAKE, "sleep"),
        (RecordKind.TIMER, "sleep"),
    ]
    await run.send("word", "up")
    async with engine.worker():
        assert await run.result("20s") == "up"


async def test_the_end_of_a_sleep_is_moved() -> None:
    async with Environment([sleeping]) as env:
        run = await env.start(sleeping())
        await env.settle()
        await run.wake("1h")
        await env.settle()
        assert (await run.info()).reason is Reason.TIMER
        await run.wake(env.now + datetime.timedelta(hours=2))
        await env.advance("119m")
        assert await run.status() is Status.WAITING
        await env.advance("1m")
        assert await run.result() == env.now.isoformat()


async def test_a_run_for_later_is_begun_at_another_time() -> None:
    async with Environment([listening]) as env:
        run = await env.start(listening(), at="10d")
        other = await env.start(listening(), at="10d")
        await run.wake("1h")
        await other.wake()
        await env.settle()
        assert (await other.info()).reason is Reason.MESSAGE
        assert (await run.info()).started_at == 0
        await env.advance("1h")
        assert (await run.info()).reason is Reason.MESSAGE
        for one in (run, other):
            await one.send("word", "hello")
            assert await one.result() == "hello"


async def test_beginning_a_run_earlier_does_not_cut_its_own_sleep_short() -> None:
    async with Environment([sleeping]) as env:
        run = await env.start(sleeping(), at="10d")
        await run.wake("1h")
        await env.advance("1h")
        begun = env.now
        await env.advance("29d")
        assert (await run.info()).reason is Reason.TIMER
        await env.advance("1d")
        assert await run.result() == (begun + datetime.timedelta(days=30)).isoformat()


async def test_waking_a_run_that_is_not_asleep_is_refused_and_says_why(stage: Stage) -> None:
    engine = stage.engine(listening)
    async with engine.worker():
        run = await engine.start(listening())
        await until(run, Status.WAITING)
        with pytest.raises(UsageError, match="not asleep.*waits for message '"):
            await run.wake()
        assert await run.inbox() == []
        await run.send("word", "on")
        await run.result("20s")
        with pytest.raises(RunFinished):
            await run.wake()
        with pytest.raises(RunNotFound):
            await engine.runs.wake("missing")


async def test_a_paused_sleep_is_not_woken() -> None:
    async with Environment([sleeping]) as env:
        run = await env.start(sleeping())
        await env.settle()
        await run.pause("first things first")
        with pytest.raises(UsageError, match="first things first"):
            await run.wake()
