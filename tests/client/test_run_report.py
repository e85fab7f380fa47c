"""Durations in histories and reports."""

from __future__ import annotations

import asyncio
import time

import pytest

from perdure import Context, Retry, RunFailed, step, workflow
from perdure.admin import RecordKind
from perdure.testing import Environment
from tests.stage import Stage


async def test_a_record_that_a_retry_keeps_took_as_long_as_before(stage: Stage) -> None:
    broken = True

    async def quick() -> int:
        await asyncio.sleep(0.01)
        return 1

    @step(retry=Retry.never())
    async def declined() -> None:
        if broken:
            raise ConnectionError

    @workflow("durations.kept.v1")
    async def flow(ctx: Context) -> None:
        await ctx.sleep(0.05)
        await ctx.step(quick)
        await ctx.step(declined)

    engine = stage.engine(flow)
    async with engine.worker():
        run = await engine.start(flow())
        before = time.monotonic()
        for _ in range(2):
            with pytest.raises(RunFailed):
                await run.result("60s")
            await asyncio.sleep(0.5)  # the time between attempts, which no duration may include
            await run.retry()
        with pytest.raises(RunFailed):
            await run.result("60s")
        broken = False
        await run.retry()
        await run.result("60s")
    apart = (time.monotonic() - before) * 1e6
    for location in ("quick", "sleep"):
        kept = [record for record in await run.history() if record.location == location]
        assert len(kept) == 4
        assert len({record.at for record in kept}) == 4
        assert len({record.at - record.started_at for record in kept}) == 1
        assert all(record.started_at for record in kept)
        [found] = [one for one in (await run.report()).steps if one.location == location]
        assert (found.started_at, found.finished_at) == (kept[0].started_at, kept[0].at)
        assert 0 < found.duration * 1e6 < apart - 1e6


async def test_sleeps_children_and_timeouts_have_a_start(stage: Stage) -> None:
    @workflow("durations.child.v1")
    async def child(ctx: Context) -> None:
        await ctx.sleep(0.05)

    @workflow("durations.flow.v1")
    async def flow(ctx: Context) -> None:
        await ctx.sleep(0.05)
        await asyncio.sleep(0.05)
        with pytest.raises(TimeoutError):
            await ctx.receive("never", timeout=0.05)
        await ctx.call(child())

    engine = stage.engine(flow, child)
    async with engine.worker():
        run = await engine.start(flow())
        await run.result("60s")
    history = await run.history()
    assert [record.kind for record in history] == [
        RecordKind.TIMER,
        RecordKind.TIMER,
        RecordKind.TIMER,
        RecordKind.CHILD,
    ]
    began = (await run.info()).started_at
    for record in history:
        assert record.started_at == began
        assert record.at - record.started_at >= 50_000
        began = record.at


async def test_an_attempt_starts_once_while_the_clock_stands() -> None:
    broken = True

    @workflow("durations.virtual.v1")
    async def flow(ctx: Context) -> None:
        for _ in range(3):
            await ctx.receive("go")
        if broken:
            raise ConnectionError

    async with Environment([flow]) as env:
        run = await env.start(flow())
        for _ in range(3):
            await env.settle()
            await env.send(run, "go")
            await env.restart()
        with pytest.raises(RunFailed):
            await run.result()
        broken = False
        await run.retry()
        await run.result()
        kinds = [event.kind for event in await run.events() if event.kind in ("started", "claimed")]
    assert kinds.count("started") == 2
