"""Timeouts, timers and deadlines."""

from __future__ import annotations

import asyncio
import datetime
import threading

import pytest

from perdure import Context, Retry, RunFailed, Status, StepTimeout, step, step_info, workflow
from perdure.admin import Reason, RecordKind
from perdure.errors import Expired
from tests.helpers import eventually
from tests.stage import Stage, until


async def test_an_async_step_that_takes_too_long_is_cancelled(stage: Stage) -> None:
    seen: list[str] = []

    @step(timeout="10ms", retry=Retry.never())
    async def slow() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    @workflow("time.slow.v1")
    async def waiting(ctx: Context) -> str:
        try:
            await ctx.step(slow)
        except TimeoutError as error:
            assert isinstance(error, StepTimeout)
            return str(error)
        return "impossible"

    engine = stage.engine(waiting)
    async with engine.worker():
        assert "'slow' took longer than its timeout of 0.01 s" in await (await engine.start(waiting())).result("20s")
    assert seen == ["cancelled"]


async def test_a_sync_step_that_takes_too_long_is_left_behind_and_its_result_ignored(stage: Stage) -> None:
    go_on, returned, wanted = threading.Event(), threading.Event(), []

    # Long enough for a thread to begin on a busy machine.
    @step(timeout="3s", retry=Retry.never())
    def slow() -> str:
        info = step_info()
        go_on.wait(20)
        wanted.append(not info.is_cancelled())
        returned.set()
        return "too late"

    @workflow("time.thread.v1")
    async def waiting(ctx: Context) -> str:
        try:
            return await ctx.step(slow)
        except TimeoutError:
            return await ctx.receive("go", str)

    engine = stage.engine(waiting)
    async with engine.worker():
        run = await engine.start(waiting())
        await until(run, Status.WAITING)
        go_on.set()
        await asyncio.to_thread(returned.wait, 20)
        await run.send("go", "timed out")
        assert await run.result("20s") == "timed out"
    assert wanted == [False]
    assert [(record.kind, record.failed) for record in await run.history()] == [
        (RecordKind.STEP, True),
        (RecordKind.MESSAGE, False),
    ]


async def test_a_timeout_bounds_one_attempt_and_another_follows(stage: Stage) -> None:
    calls = 0

    @step(timeout="10ms", retry=Retry.fixed("1ms", attempts=3))
    async def slow_at_first() -> int:
        nonlocal calls
        calls += 1
        if calls < 3:
            await asyncio.Event().wait()
        return calls

    @workflow("time.again.v1")
    async def waiting(ctx: Context) -> int:
        return await ctx.step(slow_at_first)

    engine = stage.engine(waiting)
    async with engine.worker():
        assert await (await engine.start(waiting())).result("20s") == 3


async def test_a_policy_may_give_up_on_a_timeout(stage: Stage) -> None:
    calls = 0

    @step(timeout="10ms", retry=Retry.quick())
    async def slow() -> None:
        nonlocal calls
        calls += 1
        await asyncio.Event().wait()

    @workflow("time.give_up.v1")
    async def waiting(ctx: Context) -> None:
        await ctx.step(slow)

    engine = stage.engine(waiting)
    async with engine.worker():
        with pytest.raises(RunFailed, match="StepTimeout"):
            await (await engine.start(waiting())).result("20s")
    assert calls == 1


async def test_asyncio_timeout_gives_up_a_step_which_is_then_cancelled(stage: Stage) -> None:
    seen: list[str] = []

    async def slow() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    @workflow("time.asyncio.v1")
    async def waiting(ctx: Context) -> str:
        try:
            async with asyncio.timeout(0.01):
                await ctx.step(slow)
        except TimeoutError:
            return "gave up"
        return "impossible"

    engine = stage.engine(waiting)
    async with engine.worker():
        assert await (await engine.start(waiting())).result("20s") == "gave up"
        await eventually(lambda: seen)


async def test_asyncio_sleep_is_a_durable_timer(stage: Stage) -> None:
    @workflow("time.sleep.v1")
    async def sleeping(ctx: Context) -> float:
        before = ctx.now()
        await asyncio.sleep(0.002)
        await ctx.sleep(datetime.timedelta(milliseconds=3))
        await ctx.sleep_until(ctx.now() + datetime.timedelta(milliseconds=1))
        return (ctx.now() - before).total_seconds()

    engine = stage.engine(sleeping)
    async with engine.worker():
        run = await engine.start(sleeping())
        assert await run.result("20s") >= 0.006
    assert [(record.kind, record.location) for record in await run.history()] == [
        (RecordKind.TIMER, "sleep"),
        (RecordKind.TIMER, "sleep#2"),
        (RecordKind.TIMER, "sleep#3"),
    ]


async def test_a_long_sleep_parks_the_run_and_wakes_it(stage: Stage) -> None:
    @workflow("time.park.v1")
    async def sleeping(ctx: Context) -> str:
        await ctx.sleep("2s")
        return "awake"

    engine = stage.engine(sleeping)
    async with engine.worker():
        run = await engine.start(sleeping())
        await until(run, Status.WAITING)
        found = await run.info()
        assert (found.reason, found.worker) == (Reason.TIMER, None)
        assert await run.result("20s") == "awake"


async def test_a_timer_goes_on_from_where_it_was_after_a_restart(stage: Stage) -> None:
    @workflow("time.restart.v1")
    async def sleeping(ctx: Context) -> float:
        before = ctx.now()
        await ctx.sleep("2s")
        return (ctx.now() - before).total_seconds()

    engine = stage.engine(sleeping)
    run = await engine.start(sleeping())
    async with engine.worker():
        await until(run, Status.WAITING)
        due = (await run.info()).wake_at
    async with engine.worker():
        assert await run.result("20s") >= 2
    [record] = await run.history()
    assert record.at >= due


async def test_a_run_that_is_not_finished_by_its_deadline_expires(stage: Stage) -> None:
    @workflow("time.expire.v1")
    async def waiting(ctx: Context) -> None:
        await ctx.receive("never")

    engine = stage.engine(waiting)
    async with engine.worker(lease="1s"):
        run = await engine.start(waiting(), deadline="200ms")
        with pytest.raises(RunFailed, match="Expired") as caught:
            await run.result("20s")
        assert isinstance(caught.value.__cause__, Expired)
        assert await run.status() is Status.FAILED


async def test_a_running_step_does_not_keep_a_run_from_expiring(stage: Stage) -> None:
    cancelled = asyncio.Event()

    async def hold() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    @workflow("time.hold.v1")
    async def holding(ctx: Context) -> None:
        await ctx.step(hold)

    engine = stage.engine(holding)
    async with engine.worker():
        run = await engine.start(holding(), deadline="3s")
        with pytest.raises(RunFailed, match="Expired"):
            await run.result("20s")
        await cancelled.wait()


async def test_a_run_that_no_worker_takes_expires_too(stage: Stage) -> None:
    @workflow("time.idle.v1")
    async def idle(ctx: Context) -> None:
        return None

    engine = stage.engine(idle)
    run = await engine.start(idle(), queue="missing", deadline="1ms")
    async with engine.worker(lease="300ms"):
        with pytest.raises(RunFailed, match="Expired"):
            await run.result("20s")


async def test_a_child_expires_with_its_parent_at_the_latest(stage: Stage) -> None:
    @workflow("time.child.v1")
    async def child(ctx: Context) -> None:
        await ctx.receive("never")

    @workflow("time.parent.v1")
    async def parent(ctx: Context) -> None:
        await ctx.call(child(), deadline="10d")

    engine = stage.engine(parent, child)
    async with engine.worker():
        run = await engine.start(parent(), id="p", deadline="1d")
        await until(run, Status.WAITING)
        inner = await engine.get("p/time.child.v1")
        assert (await inner.info()).deadline == (await run.info()).deadline


async def test_a_child_past_its_own_deadline_is_an_error_in_its_parent(stage: Stage) -> None:
    @workflow("time.late_child.v1")
    async def child(ctx: Context) -> None:
        await ctx.receive("never")

    @workflow("time.late_parent.v1")
    async def parent(ctx: Context) -> str:
        try:
            await ctx.call(child(), deadline="100ms")
        except Expired:
            return "expired"
        return "impossible"

    engine = stage.engine(parent, child)
    async with engine.worker(lease="1s"):
        assert await (await engine.start(parent())).result("20s") == "expired"
