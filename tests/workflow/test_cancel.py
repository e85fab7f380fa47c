from __future__ import annotations

import asyncio
import threading

import pytest

from perdure import Context, RunCancelled, RunFailed, RunNotFound, Status, step_info, workflow
from perdure.admin import RecordKind
from tests.stage import Stage, until, until_recorded


@workflow("stop.wait.v1")
async def waiting(ctx: Context) -> None:
    await ctx.receive("never")


async def test_a_run_that_never_started_is_cancelled_at_once(stage: Stage) -> None:
    engine = stage.engine(waiting)
    run = await engine.start(waiting())
    assert await run.cancel("changed my mind")
    assert await run.status() is Status.CANCELLED
    with pytest.raises(RunCancelled, match="changed my mind") as caught:
        await run.result("20s")
    assert caught.value.run_id == run.id


async def test_a_scheduled_run_is_cancelled_at_once(stage: Stage) -> None:
    engine = stage.engine(waiting)
    run = await engine.start(waiting(), at="3d")
    assert await run.cancel()
    assert await run.status() is Status.CANCELLED


async def test_a_waiting_run_ends_cancelled_and_says_why(stage: Stage) -> None:
    engine = stage.engine(waiting)
    async with engine.worker():
        run = await engine.start(waiting())
        await until(run, Status.WAITING)
        assert await run.cancel("out of stock")
        with pytest.raises(RunCancelled, match="out of stock"):
            await run.result("20s")
        assert await run.status() is Status.CANCELLED
        assert [record.kind for record in await run.history()] == [RecordKind.CANCEL]
        assert [event.kind for event in await run.events()][-1] == "cancelled"


async def test_a_waiting_run_is_cancelled_by_a_worker_that_comes_later(stage: Stage) -> None:
    engine = stage.engine(waiting)
    run = await engine.start(waiting())
    async with engine.worker():
        await until(run, Status.WAITING)
    assert await run.cancel()
    async with engine.worker():
        with pytest.raises(RunCancelled):
            await run.result("20s")


async def test_a_running_async_step_is_cancelled(stage: Stage) -> None:
    entered = asyncio.Event()
    seen: list[str] = []

    async def hold() -> None:
        entered.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("step")
            raise

    @workflow("stop.step.v1")
    async def holding(ctx: Context) -> None:
        await ctx.step(hold)

    engine = stage.engine(holding)
    async with engine.worker():
        run = await engine.start(holding())
        await entered.wait()
        await run.cancel()
        with pytest.raises(RunCancelled):
            await run.result("20s")
    assert seen == ["step"]


async def test_a_running_sync_step_learns_that_nobody_wants_its_result(stage: Stage) -> None:
    entered, seen = threading.Event(), threading.Event()

    def hold() -> None:
        info = step_info()
        entered.set()
        pause = threading.Event()
        while not info.is_cancelled():
            pause.wait(0.005)
        seen.set()

    @workflow("stop.thread.v1")
    async def holding(ctx: Context) -> None:
        await ctx.step(hold)

    engine = stage.engine(holding)
    async with engine.worker():
        run = await engine.start(holding())
        await asyncio.to_thread(entered.wait, 20)
        await run.cancel()
        with pytest.raises(RunCancelled):
            await run.result("20s")
    assert await asyncio.to_thread(seen.wait, 20)


async def test_cleanup_after_a_cancellation_runs_durable_steps(stage: Stage) -> None:
    done: list[str] = []

    async def refund(order: str) -> str:
        done.append(order)
        return "refunded"

    @workflow("stop.clean.v1")
    async def cleaning(ctx: Context) -> None:
        try:
            await ctx.receive("never")
        finally:
            await ctx.step(refund, "o-1")

    engine = stage.engine(cleaning)
    async with engine.worker():
        run = await engine.start(cleaning())
        await until(run, Status.WAITING)
        await run.cancel()
        with pytest.raises(RunCancelled):
            await run.result("20s")
    assert done == ["o-1"]
    assert [(r.kind, r.location) for r in await run.history()] == [(RecordKind.CANCEL, ""), (RecordKind.STEP, "refund")]


async def test_cleanup_survives_a_worker_that_stops_in_the_middle_of_it(stage: Stage) -> None:
    calls: list[str] = []

    async def first() -> None:
        calls.append("first")

    async def second() -> None:
        calls.append("second")

    @workflow("stop.long.v1")
    async def cleaning(ctx: Context) -> None:
        try:
            await ctx.receive("never")
        except asyncio.CancelledError:
            await ctx.step(first)
            await ctx.receive("go on")
            await ctx.step(second)
            raise

    engine = stage.engine(cleaning)
    run = await engine.start(cleaning())
    async with engine.worker():
        await until(run, Status.WAITING)
        await run.cancel()
        await until_recorded(run, 2)
    await run.send("go on")
    async with engine.worker():
        with pytest.raises(RunCancelled):
            await run.result("20s")
    assert calls == ["first", "second"]


async def test_a_workflow_that_swallows_the_cancellation_completes(stage: Stage) -> None:
    @workflow("stop.stubborn.v1")
    async def stubborn(ctx: Context) -> str:
        try:
            await ctx.receive("never")
        except asyncio.CancelledError:
            return "finished anyway"
        return "impossible"

    engine = stage.engine(stubborn)
    async with engine.worker():
        run = await engine.start(stubborn())
        await until(run, Status.WAITING)
        await run.cancel()
        assert await run.result("20s") == "finished anyway"
        assert await run.status() is Status.COMPLETED


async def test_an_error_raised_while_cleaning_up_fails_the_run(stage: Stage) -> None:
    @workflow("stop.broken.v1")
    async def broken(ctx: Context) -> None:
        try:
            await ctx.receive("never")
        finally:
            raise ValueError("cannot clean up")

    engine = stage.engine(broken)
    async with engine.worker():
        run = await engine.start(broken())
        await until(run, Status.WAITING)
        await run.cancel()
        with pytest.raises(RunFailed, match="cannot clean up"):
            await run.result("20s")


async def test_a_workflow_that_cancels_itself_has_failed(stage: Stage) -> None:
    @workflow("stop.self.v1")
    async def own(ctx: Context) -> None:
        raise asyncio.CancelledError

    engine = stage.engine(own)
    async with engine.worker():
        run = await engine.start(own())
        with pytest.raises(RunFailed, match="CancelledError"):
            await run.result("20s")


async def test_cancelling_a_finished_run_changes_nothing(stage: Stage) -> None:
    @workflow("stop.quick.v1")
    async def quick(ctx: Context) -> int:
        return 1

    engine = stage.engine(quick)
    async with engine.worker():
        run = await engine.start(quick())
        await run.result("20s")
    before = await stage.dump()
    assert not await run.cancel()
    assert await stage.dump() == before


async def test_cancelling_twice_does_not_interrupt_the_cleanup(stage: Stage) -> None:
    done: list[str] = []

    async def refund() -> None:
        done.append("refund")

    @workflow("stop.twice.v1")
    async def cleaning(ctx: Context) -> None:
        try:
            await ctx.receive("never")
        finally:
            await ctx.receive("go on")
            await ctx.step(refund)

    engine = stage.engine(cleaning)
    async with engine.worker():
        run = await engine.start(cleaning())
        await until(run, Status.WAITING)
        await run.cancel("once")
        await until_recorded(run, 1)
        await run.cancel("twice")
        await until_recorded(run, 2)
        await run.send("go on")
        with pytest.raises(RunCancelled, match="once"):
            await run.result("20s")
    assert done == ["refund"]


async def test_cancelling_nobody_is_an_error(stage: Stage) -> None:
    engine = stage.engine(waiting)
    with pytest.raises(RunNotFound, match="'missing'"):
        await engine.cancel("missing")


async def test_a_child_is_cancelled_with_its_parent(stage: Stage) -> None:
    @workflow("stop.parent.v1")
    async def parent(ctx: Context) -> None:
        await ctx.call(waiting())

    engine = stage.engine(parent, waiting)
    async with engine.worker():
        run = await engine.start(parent(), id="parent")
        await until(run, Status.WAITING)
        child = await engine.get("parent/stop.wait.v1")
        await until(child, Status.WAITING)
        await run.cancel()
        with pytest.raises(RunCancelled):
            await run.result("20s")
        with pytest.raises(RunCancelled, match="'parent' no longer waits for it"):
            await child.result("20s")


async def test_a_child_is_cancelled_when_its_call_times_out(stage: Stage) -> None:
    @workflow("stop.impatient.v1")
    async def impatient(ctx: Context) -> str:
        try:
            async with asyncio.timeout(0.02):
                await ctx.call(waiting())
        except TimeoutError:
            return "gave up"
        return "impossible"

    engine = stage.engine(impatient, waiting)
    async with engine.worker():
        run = await engine.start(impatient(), id="parent")
        assert await run.result("20s") == "gave up"
        child = await engine.get("parent/stop.wait.v1")
        with pytest.raises(RunCancelled):
            await child.result("20s")


async def test_a_child_cancelled_before_it_starts_is_an_error_in_its_parent(stage: Stage) -> None:
    @workflow("stop.caller.v1")
    async def caller(ctx: Context) -> str:
        try:
            await ctx.call(waiting(), queue="unserved")
        except RunCancelled as error:
            return str(error)
        return "impossible"

    engine = stage.engine(caller, waiting)
    async with engine.worker():
        run = await engine.start(caller(), id="parent")
        await until(run, Status.WAITING)
        await engine.cancel("parent/stop.wait.v1", "by hand")
        assert "by hand" in await run.result("20s")


async def test_a_child_cancelled_by_somebody_else_is_an_error_in_its_parent(stage: Stage) -> None:
    @workflow("stop.caller.v1")
    async def caller(ctx: Context) -> str:
        try:
            await ctx.call(waiting())
        except RunCancelled as error:
            return str(error)
        return "impossible"

    engine = stage.engine(caller, waiting)
    async with engine.worker():
        run = await engine.start(caller(), id="parent")
        await until(run, Status.WAITING)
        child = await engine.get("parent/stop.wait.v1")
        await until(child, Status.WAITING)
        await child.cancel("by hand")
        assert "by hand" in await run.result("20s")
