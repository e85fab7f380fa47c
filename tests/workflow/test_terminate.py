"""Terminating runs: they end without their code."""

from __future__ import annotations

import asyncio
import logging

import pytest

from perdure import (
    Context,
    Engine,
    Handle,
    Limit,
    Retry,
    RunCancelled,
    RunFailed,
    RunFinished,
    RunNotFound,
    Singleton,
    Status,
    UsageError,
    activity,
    workflow,
)
from perdure.errors import RunTerminated
from tests.helpers import eventually
from tests.stage import Stage, until, until_recorded


@workflow("terminate.stubborn.v1")
async def stubborn(ctx: Context) -> None:
    while True:
        try:
            await ctx.receive("never")
        except asyncio.CancelledError:
            continue


@workflow("terminate.wait.v1")
async def waiting(ctx: Context) -> None:
    await ctx.receive("never")


async def test_a_run_whose_code_ignores_its_cancellation_is_terminated(stage: Stage) -> None:
    engine = stage.engine(stubborn)
    async with engine.worker():
        run = await engine.start(stubborn())
        await until(run, Status.WAITING)
        await run.cancel()
        await until_recorded(run)
        assert not (await run.status()).finished
        assert await run.terminate("it will not listen")
        assert not await run.terminate("again")
        with pytest.raises(RunTerminated, match="was terminated: it will not listen") as caught:
            await run.result("20s")
        assert isinstance(caught.value, RunFailed)
        assert caught.value.run_id == run.id
        assert await run.status() is Status.FAILED
        assert "RunTerminated" in await run.why()
        with pytest.raises(RunFinished):
            await run.send("never")
    event = (await run.events())[-1]
    assert event.kind == "terminated"
    assert event.actor.startswith("client:")
    assert (await run.report()).errors[-1].error == "perdure.errors.RunTerminated"


async def test_a_run_that_never_began_and_one_for_later_are_terminated(stage: Stage) -> None:
    engine = stage.engine(waiting)
    for run in (await engine.start(waiting()), await engine.start(waiting(), at="3d")):
        assert await engine.runs.terminate(run.id)
        assert await run.status() is Status.FAILED
    with pytest.raises(RunNotFound, match="there is no run 'nothing' to terminate"):
        await engine.runs.terminate("nothing")


async def test_a_paused_run_is_terminated(stage: Stage) -> None:
    engine = stage.engine(waiting)
    run = await engine.start(waiting())
    await run.pause()
    assert await run.terminate()
    assert await run.status() is Status.FAILED


async def test_the_worker_that_holds_a_terminated_run_stops_its_steps(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    ended: list[str] = []
    begun = asyncio.Event()

    async def endless() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("step")

    @workflow("terminate.stepping.v1")
    async def stepping(ctx: Context) -> None:
        await ctx.step(endless)

    engine = stage.engine(stepping)
    async with engine.worker(lease=2):
        run = await engine.start(stepping())
        await begun.wait()
        await run.terminate()
        with caplog.at_level(logging.WARNING, "perdure.worker"):
            await eventually(lambda: ended == ["step"], saying="the step being stopped")
    assert "its lease was taken away" in caplog.text
    assert await run.history() == []
    assert await run.status() is Status.FAILED


async def test_the_worker_of_a_terminated_activity_stops_it(stage: Stage) -> None:
    ended: list[str] = []
    begun = asyncio.Event()

    @activity("terminate.activity.v1")
    async def endless() -> None:
        begun.set()
        while True:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append("attempt")

    engine = stage.engine(endless)
    async with engine.worker(lease=2):
        run = await engine.start(endless())
        await begun.wait()
        await run.terminate()
        await eventually(lambda: ended == ["attempt"], saying="the attempt being stopped")
    assert await run.status() is Status.FAILED


async def test_a_parent_gets_the_termination_of_a_child_as_an_error(stage: Stage) -> None:
    @workflow("terminate.parent.v1")
    async def parent(ctx: Context) -> str:
        try:
            await ctx.call(stubborn(), id="the child")
        except RunTerminated as error:
            return str(error)
        return "nothing"

    engine = stage.engine(parent, stubborn)
    async with engine.worker():
        run = await engine.start(parent())
        await eventually(lambda: _waits(engine, "the child"), saying="the child waiting")
        assert await engine.runs.terminate("the child", "no use")
        assert await run.result("20s") == "run 'the child' was terminated: no use"


async def _waits(engine: Engine, run_id: str) -> bool:
    runs = (await engine.runs.list(status=Status.WAITING)).runs
    return any(run.id == run_id for run in runs)


async def test_children_of_a_terminated_run_are_cancelled_unless_they_outlive_it(stage: Stage) -> None:
    @workflow("terminate.family.v1")
    async def family(ctx: Context) -> None:
        for policy in ("cancel", "wait", "abandon"):
            ctx.spawn(waiting(), id=policy, on_close=policy)
        await ctx.receive("never")

    engine = stage.engine(family, waiting)
    async with engine.worker():
        run = await engine.start(family())

        async def all_wait() -> bool:
            return all([await _waits(engine, child) for child in ("cancel", "wait", "abandon")])

        await eventually(all_wait, saying="the children waiting")
        await run.terminate()
        for child in ("cancel", "wait"):
            with pytest.raises(RunCancelled, match="was terminated"):
                await (await engine.get(child)).result("20s")
        assert await (await engine.get("abandon")).status() is Status.WAITING


async def test_a_terminated_run_goes_on_where_it_was_when_it_is_retried(stage: Stage) -> None:
    calls: list[str] = []

    def count() -> int:
        calls.append("count")
        return len(calls)

    @workflow("terminate.again.v1")
    async def again(ctx: Context) -> int:
        done = await ctx.step(count)
        await ctx.receive("go")
        return done

    engine = stage.engine(again)
    async with engine.worker():
        run = await engine.start(again())
        await until_recorded(run)
        await run.terminate()
        assert await run.retry() == 2
        await run.send("go")
        assert await run.result("20s") == 1
    assert calls == ["count"]


async def test_the_next_run_of_a_singleton_follows_a_terminated_one(stage: Stage) -> None:
    engine = stage.engine(waiting)
    async with engine.worker():
        first = await engine.start(waiting(), singleton=Singleton("only one", "queue"))
        second = await engine.start(waiting(), singleton=Singleton("only one", "queue"))
        await until(first, Status.WAITING)
        await first.terminate()
        await eventually(lambda: _begun(second), saying="the second having begun")


async def _begun(run: Handle[None]) -> bool:
    return (await run.info()).started_at != 0


async def test_a_terminated_run_holds_no_permit(stage: Stage) -> None:
    begun: list[str] = []

    @activity("terminate.limited.v1", limit=Limit("terminate.slot", concurrency=1))
    async def limited(name: str) -> None:
        begun.append(name)
        if name == "first":
            await asyncio.Event().wait()

    engine = stage.engine(limited)
    async with engine.worker(lease=2):
        first = await engine.start(limited("first"))
        await eventually(lambda: begun == ["first"], saying="the first having begun")
        second = await engine.start(limited("second"))
        await first.terminate()
        await second.result("30s")


async def test_a_run_terminated_with_its_undos_undoes_its_steps(stage: Stage) -> None:
    done: list[str] = []

    def book(what: str) -> str:
        done.append(what)
        return what

    def unbook(what: str) -> None:
        done.append(f"un{what}")

    @workflow("terminate.undo.v1")
    async def trip(ctx: Context) -> None:
        await ctx.options(undo=unbook).step(book, "hotel")
        await ctx.options(undo=unbook).step(book, "flight")
        while True:
            try:
                await ctx.receive("never")
            except asyncio.CancelledError:
                done.append("code")

    engine = stage.engine(trip)
    run = await engine.start(trip())
    async with engine.worker():
        await until_recorded(run, 2)
        await until(run, Status.WAITING)
    assert await run.terminate("enough", undo=True)
    assert await run.status() is Status.PENDING
    async with engine.worker():
        with pytest.raises(RunTerminated, match="enough"):
            await run.result("20s")
    assert done == ["hotel", "flight", "unflight", "unhotel"]
    kinds = [event.kind for event in await run.events()]
    assert kinds[-1] == "failed"
    assert "terminate_requested" in kinds


async def test_an_undo_of_a_terminated_run_that_fails_is_told(stage: Stage) -> None:
    def book() -> str:
        return "hotel"

    def unbook(what: str) -> None:
        raise ValueError("too late")

    @workflow("terminate.undo.fails.v1")
    async def trip(ctx: Context) -> None:
        await ctx.options(undo=unbook, retry=Retry(attempts=1)).step(book)
        await ctx.receive("never")

    engine = stage.engine(trip)
    async with engine.worker(retry=Retry(attempts=1)):
        run = await engine.start(trip())
        await until_recorded(run)
        await run.terminate(undo=True)
        with pytest.raises(RunTerminated) as caught:
            await run.result("20s")
    assert caught.value.failure is not None
    assert list(caught.value.failure.not_undone) == ["book"]


async def test_a_run_terminated_with_its_undos_between_two_attempts_undoes_the_steps_of_the_first(stage: Stage) -> None:
    done: list[str] = []

    def book(what: str) -> str:
        if what == "flight":
            raise ValueError("no flight")
        done.append(what)
        return what

    def unbook(what: str) -> None:
        done.append(f"un{what}")

    @workflow("terminate.undo.retried.v1", retry=Retry.fixed("1h", attempts=3))
    async def trip(ctx: Context) -> None:
        await ctx.options(undo=unbook).step(book, "hotel")
        await ctx.options(retry=Retry.never()).step(book, "flight")

    engine = stage.engine(trip)
    async with engine.worker():
        run = await engine.start(trip())
        await until(run, Status.WAITING)
        assert await run.terminate("enough", undo=True)
        with pytest.raises(RunTerminated, match="enough"):
            await run.result("20s")
    assert done == ["hotel", "unhotel"]


async def test_an_activity_terminated_with_undos_just_ends(stage: Stage) -> None:
    begun = asyncio.Event()
    ended: list[str] = []

    @activity("terminate.activity.undo.v1")
    async def endless() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("attempt")

    engine = stage.engine(endless)
    async with engine.worker():
        run = await engine.start(endless())
        await begun.wait()
        assert await run.terminate(undo=True)
        with pytest.raises(RunTerminated):
            await run.result("20s")
        await eventually(lambda: ended == ["attempt"], saying="the attempt being stopped")


async def test_a_blocked_run_is_terminated_but_not_undone(stage: Stage) -> None:
    engine = stage.engine(waiting)
    run = await engine.start(waiting())
    async with engine.worker():
        await until(run, Status.WAITING)
    assert stage.store is not None
    await stage.store._write(
        "unblock", "", lambda tx: tx.execute("UPDATE perdure_runs SET status = 'blocked', reason = 'diverged'", {})
    )
    with pytest.raises(UsageError, match="is blocked, so its undos cannot be found"):
        await run.terminate(undo=True)
    assert await run.terminate()
    assert await run.status() is Status.FAILED
