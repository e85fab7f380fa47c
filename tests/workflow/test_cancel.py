from __future__ import annotations

import asyncio
import contextlib
import threading

import pytest
from msgspec import Struct

from perdure import Context, Fatal, Retry, RunCancelled, RunFailed, RunNotFound, Status, step_info, workflow
from perdure.admin import RecordKind
from perdure.core.codec.failure import Failure
from perdure.errors import WorkflowError
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


async def test_a_running_sync_step_learns_that_its_result_is_not_wanted(stage: Stage) -> None:
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


class Halves(Struct):
    done: list[str]


async def test_a_cancelled_workflow_that_returns_ends_cancelled_with_a_partial_result(stage: Stage) -> None:
    steps: list[str] = []

    async def more() -> str:
        steps.append("more")
        return "second"

    @workflow("stop.stubborn.v1")
    async def stubborn(ctx: Context) -> Halves:
        try:
            await ctx.receive("never")
        except asyncio.CancelledError:
            return Halves(["first", await ctx.step(more)])
        return Halves([])

    engine = stage.engine(stubborn)
    async with engine.worker():
        run = await engine.start(stubborn())
        await until(run, Status.WAITING)
        await run.cancel("enough")
        with pytest.raises(RunCancelled, match="was cancelled: enough") as caught:
            await run.result("20s")
    assert caught.value.partial == Halves(["first", "second"])
    assert caught.value.__cause__ is None
    assert steps == ["more"]
    info = await run.info()
    assert (info.status, info.output) == (Status.CANCELLED, None)
    assert Failure.read(info.error).partial == '{"done":["first","second"]}'


async def test_a_cancelled_workflow_without_a_result_has_no_partial_result(stage: Stage) -> None:
    @workflow("stop.mute.v1")
    async def mute(ctx: Context) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await ctx.receive("never")

    engine = stage.engine(mute)
    async with engine.worker():
        run = await engine.start(mute())
        await until(run, Status.WAITING)
        await run.cancel()
        with pytest.raises(RunCancelled) as caught:
            await run.result("20s")
    assert caught.value.partial is None
    assert Failure.read((await run.info()).error).partial is None


async def test_a_workflow_that_takes_its_cancellation_back_completes(stage: Stage) -> None:
    @workflow("stop.back.v1")
    async def back(ctx: Context) -> list[bool]:
        try:
            await ctx.receive("never")
        except asyncio.CancelledError:
            return [ctx.uncancel(), ctx.uncancel()]
        return []

    engine = stage.engine(back)
    async with engine.worker():
        run = await engine.start(back())
        await until(run, Status.WAITING)
        await run.cancel()
        assert await run.result("20s") == [True, False]
        assert await run.status() is Status.COMPLETED


async def test_a_workflow_that_calls_the_uncancel_of_its_task_completes(stage: Stage) -> None:
    @workflow("stop.task.v1")
    async def own(ctx: Context) -> str:
        try:
            await ctx.receive("never")
        except asyncio.CancelledError:
            task = asyncio.current_task()
            assert task is not None
            task.uncancel()
        return "went on"

    engine = stage.engine(own)
    async with engine.worker():
        run = await engine.start(own())
        await until(run, Status.WAITING)
        await run.cancel()
        assert await run.result("20s") == "went on"


async def test_a_run_that_took_its_cancellation_back_can_be_cancelled_again(stage: Stage) -> None:
    @workflow("stop.again.v1")
    async def again(ctx: Context) -> str:
        try:
            await ctx.receive("never")
        except asyncio.CancelledError:
            ctx.uncancel()
        await ctx.receive("never")
        return "impossible"

    engine = stage.engine(again)
    async with engine.worker():
        run = await engine.start(again())
        await until(run, Status.WAITING)
        await run.cancel("once")
        await until_recorded(run, 1)
        await until(run, Status.WAITING)
        await run.cancel("twice")
        with pytest.raises(RunCancelled, match="twice"):
            await run.result("20s")


async def test_a_run_that_took_its_cancellation_back_is_retried_after_a_failure(stage: Stage) -> None:
    tries: list[int] = []

    async def flaky() -> None:
        tries.append(1)
        if len(tries) == 1:
            raise ValueError("once")

    @workflow("stop.retried.v1", retry=Retry(attempts=2, initial=0.01))
    async def retried(ctx: Context) -> str:
        if not tries:
            try:
                await ctx.receive("never")
            except asyncio.CancelledError:
                ctx.uncancel()
        await ctx.options(retry=1).step(flaky)
        return "done"

    engine = stage.engine(retried)
    async with engine.worker():
        run = await engine.start(retried())
        await until(run, Status.WAITING)
        await run.cancel()
        assert await run.result("20s") == "done"
    assert len(tries) == 2


async def test_only_the_workflow_function_takes_a_cancellation_back(stage: Stage) -> None:
    @workflow("stop.branch.v1")
    async def branching(ctx: Context) -> str:
        async def branch() -> None:
            ctx.uncancel()

        try:
            await asyncio.gather(branch())
        except WorkflowError as error:
            return str(error)
        return "impossible"

    engine = stage.engine(branching)
    async with engine.worker():
        run = await engine.start(branching())
        assert "uncancel() was called in a task" in await run.result("20s")


async def test_a_cancelled_run_that_raises_another_error_ends_cancelled_and_keeps_the_error(stage: Stage) -> None:
    @workflow("stop.broken.v1", retry=3)
    async def broken(ctx: Context) -> None:
        try:
            await ctx.receive("never")
        finally:
            raise ValueError("cannot clean up")

    engine = stage.engine(broken)
    async with engine.worker():
        run = await engine.start(broken())
        await until(run, Status.WAITING)
        await run.cancel("enough")
        with pytest.raises(RunCancelled, match="enough") as caught:
            await run.result("20s")
    assert isinstance(caught.value.__cause__, ValueError)
    assert await run.status() is Status.CANCELLED
    assert (await run.info()).attempt == 1


async def test_a_cancelled_run_that_continues_as_new_ends_cancelled(stage: Stage) -> None:
    @workflow("stop.renewing.v1")
    async def renewing(ctx: Context) -> None:
        try:
            await ctx.receive("never")
        except asyncio.CancelledError:
            ctx.continue_as_new(renewing())

    engine = stage.engine(renewing)
    async with engine.worker():
        run = await engine.start(renewing())
        await until(run, Status.WAITING)
        await run.cancel("enough")
        with pytest.raises(RunCancelled, match="enough"):
            await run.result("20s")
    assert (await run.info()).generation == 1


async def test_a_run_that_took_its_cancellation_back_continues_as_new(stage: Stage) -> None:
    @workflow("stop.renewed.v1")
    async def renewed(ctx: Context, number: int) -> int:
        if number == 0:
            try:
                await ctx.receive("never")
            except asyncio.CancelledError:
                ctx.uncancel()
                ctx.continue_as_new(renewed(1))
        return number

    engine = stage.engine(renewed)
    async with engine.worker():
        run = await engine.start(renewed(0))
        await until(run, Status.WAITING)
        await run.cancel()
        assert await run.result("20s") == 1


async def test_a_timeout_in_the_cleanup_of_a_cancelled_run_is_a_timeout(stage: Stage) -> None:
    @workflow("stop.timeouts.v1")
    async def timing(ctx: Context) -> str:
        try:
            async with asyncio.timeout(3600):
                await ctx.receive("never")
        except asyncio.CancelledError:
            try:
                async with asyncio.timeout(0.02):
                    await ctx.receive("never")
            except TimeoutError:
                return "timed out"
        return "impossible"

    engine = stage.engine(timing)
    async with engine.worker():
        run = await engine.start(timing())
        await until(run, Status.WAITING)
        await run.cancel()
        with pytest.raises(RunCancelled) as caught:
            await run.result("20s")
    assert caught.value.partial == "timed out"


async def test_a_timeout_or_a_task_group_of_the_code_itself_is_no_cancellation(stage: Stage) -> None:
    @workflow("stop.inner.v1")
    async def inner(ctx: Context) -> str:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.01):
                await ctx.receive("never")
        with contextlib.suppress(ExceptionGroup):
            async with asyncio.TaskGroup() as group:
                group.create_task(_fail())
                await ctx.receive("never")
        return "completed"

    engine = stage.engine(inner)
    async with engine.worker():
        run = await engine.start(inner())
        assert await run.result("20s") == "completed"


async def _fail() -> None:
    raise ValueError("no")


async def test_a_task_group_that_is_cancelled_and_whose_task_fails_ends_the_run_as_cancelled(stage: Stage) -> None:
    @workflow("stop.group.v1")
    async def grouped(ctx: Context) -> None:
        async def stubborn() -> None:
            try:
                await ctx.receive("never")
            except asyncio.CancelledError:
                raise ValueError("a task failed") from None

        async with asyncio.TaskGroup() as group:
            group.create_task(stubborn())

    engine = stage.engine(grouped)
    async with engine.worker():
        run = await engine.start(grouped())
        await until(run, Status.WAITING)
        await run.cancel()
        with pytest.raises(RunCancelled) as caught:
            await run.result("20s")
    assert isinstance(caught.value.__cause__, ExceptionGroup)


async def test_a_cancelled_run_that_returns_is_undone(stage: Stage) -> None:
    did: list[str] = []

    async def book() -> str:
        did.append("book")
        return "seat"

    async def release(seat: str) -> None:
        did.append(f"release {seat}")

    @workflow("stop.undone.v1")
    async def undone(ctx: Context) -> str:
        await ctx.options(undo=release).step(book)
        try:
            await ctx.receive("never")
        except asyncio.CancelledError:
            return "half"
        return "impossible"

    engine = stage.engine(undone)
    async with engine.worker():
        run = await engine.start(undone())
        await until(run, Status.WAITING)
        await run.cancel()
        with pytest.raises(RunCancelled) as caught:
            await run.result("20s")
    assert caught.value.partial == "half"
    assert did == ["book", "release seat"]


async def test_the_partial_result_survives_an_undo_that_fails(stage: Stage) -> None:
    async def book() -> str:
        return "seat"

    async def release(seat: str) -> None:
        raise Fatal("the airline says no")

    @workflow("stop.not_undone.v1")
    async def undone(ctx: Context) -> str:
        await ctx.options(undo=release).step(book)
        try:
            await ctx.receive("never")
        except asyncio.CancelledError:
            return "half"
        return "impossible"

    engine = stage.engine(undone)
    async with engine.worker():
        run = await engine.start(undone())
        await until(run, Status.WAITING)
        await run.cancel()
        with pytest.raises(RunCancelled) as caught:
            await run.result("20s")
    assert caught.value.partial == "half"
    assert Failure.read((await run.info()).error).not_undone


async def test_a_cancelled_run_keeps_its_outcome_when_another_worker_takes_over_its_cleanup(stage: Stage) -> None:
    @workflow("stop.taken.v1")
    async def taken(ctx: Context) -> str:
        try:
            await ctx.receive("never")
        except asyncio.CancelledError:
            return await ctx.receive("go on", str)
        return "impossible"

    engine = stage.engine(taken)
    run = await engine.start(taken())
    async with engine.worker():
        await until(run, Status.WAITING)
        await run.cancel("enough")
        await until_recorded(run, 1)
    await run.send("go on", "half")
    async with engine.worker():
        with pytest.raises(RunCancelled, match="enough") as caught:
            await run.result("20s")
    assert caught.value.partial == "half"


async def test_a_parent_sees_the_partial_result_of_a_cancelled_child(stage: Stage) -> None:
    @workflow("stop.halfway.v1")
    async def halfway(ctx: Context) -> Halves:
        try:
            await ctx.receive("never")
        except asyncio.CancelledError:
            return Halves(["half"])
        return Halves([])

    @workflow("stop.watching.v1")
    async def watching(ctx: Context) -> Halves:
        try:
            return await ctx.call(halfway())
        except RunCancelled as error:
            assert isinstance(error.partial, Halves)
            return error.partial

    engine = stage.engine(watching, halfway)
    async with engine.worker():
        run = await engine.start(watching(), id="parent")
        await until(run, Status.WAITING)
        child = await engine.get("parent/stop.halfway.v1")
        await until(child, Status.WAITING)
        await child.cancel()
        assert await run.result("20s") == Halves(["half"])


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


async def test_cancelling_an_unknown_run_is_an_error(stage: Stage) -> None:
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


async def test_a_child_cancelled_from_outside_is_an_error_in_its_parent(stage: Stage) -> None:
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
