from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from perdure import Context, Engine, Retry, RunCancelled, RunFailed, RunNotFound, Status, workflow
from perdure.errors import EngineClosed


@workflow("sync.double.v1")
async def double(ctx: Context, number: int) -> int:
    return await ctx.step(_double, number)


@workflow("sync.wait.v1")
async def wait(ctx: Context) -> str:
    return await ctx.receive("word", str)


def _double(number: int) -> int:
    if number < 0:
        raise ValueError("negative")
    return number * 2


def test_code_that_is_not_async_starts_runs_and_waits_for_results(tmp_path: Path) -> None:
    with Engine(f"sqlite:///{tmp_path / 'runs.db'}", [double, wait]).blocking() as engine, engine.worker():
        run = engine.start(double(4), id="four")
        assert run.result("20s") == 8
        assert run.status() is Status.COMPLETED
        assert run.info().id == "four"
        assert [record.location for record in run.history()] == ["_double"]
        assert run.why().startswith("It completed")
        assert engine.get("four", double).result() == 8
        assert [handle.result("20s") for handle in engine.start_many([double(1), double(2)])] == [2, 4]
        assert len(engine.runs.list(type="sync.double.v1").runs) == 3


def test_messages_and_cancellations_work_from_code_that_is_not_async() -> None:
    with Engine("sqlite://", [double, wait]).blocking() as engine, engine.worker():
        run = engine.start(wait())
        run.send("word", "hello")
        assert run.result("20s") == "hello"
        other = engine.start(wait(), queue="unserved", id="other")
        engine.send("other", "word", "kept", key="once")
        assert "no live worker takes the queue" in engine.runs.why("other")
        assert engine.cancel("other", "enough")
        with pytest.raises(RunCancelled, match="enough"):
            other.result("20s")
        assert not other.cancel()


def test_runs_are_steered_from_code_that_is_not_async() -> None:
    with Engine("sqlite://", [double, wait]).blocking() as engine:
        run = engine.start(wait(), at="10d", id="later")
        assert engine.runs.pause("later")
        assert not run.pause("again")
        assert run.resume()
        assert not engine.runs.resume("later")
        run.wake("1h")
        engine.runs.wake("later")
        assert not run.evict()
        assert not engine.runs.evict("later")
        assert engine.queues.pause(queue="default", reason="why not")
        assert [pause.reason for pause in engine.queues.paused()] == ["why not"]
        assert engine.queues.resume(queue="default")


def test_errors_arrive_in_the_calling_thread() -> None:
    with Engine("sqlite://", [double]).blocking() as engine, engine.worker():
        with pytest.raises(RunNotFound):
            engine.get("missing")
        with pytest.raises(TimeoutError):
            engine.start(double(1), queue="unserved").result("10ms")


def test_a_failed_run_raises_with_its_cause() -> None:
    with Engine("sqlite://", [double]).blocking() as engine, engine.worker(retry=Retry.never()):
        with pytest.raises(RunFailed, match="negative") as caught:
            engine.start(double(-1)).result("20s")
        assert isinstance(caught.value.__cause__, ValueError)


def test_many_threads_share_one_engine(tmp_path: Path) -> None:
    with Engine(f"sqlite:///{tmp_path / 'runs.db'}", [double]).blocking() as engine, engine.worker():
        with ThreadPoolExecutor(8) as pool:
            results = list(pool.map(lambda number: engine.start(double(number)).result("30s"), range(40)))
        assert results == [number * 2 for number in range(40)]


def test_a_closed_engine_says_so_and_leaves_no_thread() -> None:
    before = {thread.name for thread in threading.enumerate()}
    engine = Engine("sqlite://", [double]).blocking()
    engine.start(double(1))
    engine.close()
    engine.close()
    with pytest.raises(EngineClosed):
        engine.start(double(2))
    assert "perdure blocking" not in {thread.name for thread in threading.enumerate()} - before


def test_a_call_from_its_own_loop_is_refused_instead_of_waiting_for_itself() -> None:
    async def nested() -> None:
        engine.start(double(1))

    @workflow("sync.nested.v1")
    async def nesting(ctx: Context) -> None:
        await ctx.step(nested)

    with Engine("sqlite://", [nesting, double]).blocking() as engine, engine.worker():
        run = engine.start(nesting())
        with pytest.raises(RunFailed, match="its own event loop"):
            run.result("20s")


def test_a_sync_step_may_use_the_engine_that_runs_it() -> None:
    def nested() -> int:
        return engine.start(double(21)).result("20s")

    @workflow("sync.inner.v1")
    async def nesting(ctx: Context) -> int:
        return await ctx.step(nested)

    with Engine("sqlite://", [nesting, double]).blocking() as engine, engine.worker():
        assert engine.start(nesting()).result("20s") == 42
