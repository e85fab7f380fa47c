from __future__ import annotations

import asyncio
import gc
import re
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from perdure import Context, Engine, Retry, Status, UsageError, step, workflow
from perdure.core.model.worker_info import WorkerStatus
from tests.helpers import eventually
from tests.stage import Stage, until, until_recorded


async def test_a_finished_step_is_not_run_again_by_another_worker(stage: Stage) -> None:
    calls: list[int] = []

    async def act(number: int) -> int:
        calls.append(number)
        return number

    @workflow("work.restart.v1")
    async def acting(ctx: Context) -> int:
        total = 0
        for number in range(3):
            total += await ctx.step(act, number)
            await ctx.receive("go")
        return total

    engine = stage.engine(acting)
    run = await engine.start(acting())
    for number in range(3):
        async with engine.worker():
            await until_recorded(run, 2 * number + 1)
        await run.send("go")
    async with engine.worker():
        assert await run.result("20s") == 3
    assert calls == [0, 1, 2]


async def test_a_stopping_worker_lets_its_steps_finish(stage: Stage) -> None:
    entered, go_on = asyncio.Event(), asyncio.Event()
    calls: list[str] = []

    async def hold() -> str:
        calls.append("hold")
        entered.set()
        await go_on.wait()
        return "held"

    @workflow("work.grace.v1")
    async def holding(ctx: Context) -> str:
        return await ctx.step(hold)

    engine = stage.engine(holding)
    worker = engine.worker()
    await worker.start()
    run = await engine.start(holding())
    await entered.wait()
    stopping = asyncio.ensure_future(worker.stop())
    await asyncio.sleep(0)
    go_on.set()
    await stopping
    async with engine.worker():
        assert await run.result("20s") == "held"
    assert calls == ["hold"]


async def test_a_step_past_the_grace_period_is_given_to_the_next_worker(stage: Stage) -> None:
    entered, calls = asyncio.Event(), []

    async def hold() -> str:
        calls.append("hold")
        if len(calls) == 1:
            entered.set()
            await asyncio.Event().wait()
        return "held"

    @workflow("work.hard.v1")
    async def holding(ctx: Context) -> str:
        return await ctx.step(hold)

    engine = stage.engine(holding)
    worker = engine.worker()
    await worker.start()
    run = await engine.start(holding())
    await entered.wait()
    await worker.stop(grace=0)
    assert await run.status() is Status.PENDING
    async with engine.worker():
        assert await run.result("20s") == "held"
    assert calls == ["hold", "hold"]


async def test_a_worker_is_started_once(stage: Stage) -> None:
    @workflow("work.nothing.v1")
    async def nothing(ctx: Context) -> None:
        return None

    engine = stage.engine(nothing)
    worker = engine.worker()
    assert worker.id == ""
    await worker.stop()
    await worker.start()
    assert worker.id
    with pytest.raises(UsageError, match="started before"):
        await worker.start()
    await worker.stop()
    await worker.stop()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"slots": 0}, "slots=0: give a whole number from 1"),
        ({"queues": []}, "at least one queue"),
        ({"lease": 0.01}, "too short"),
        ({"resident": -1}, "resident"),
        ({"poison_after": 0}, "poison_after"),
        ({"queues": ["a/b"]}, "queue"),
        ({"grace": "soon"}, "duration"),
    ],
)
async def test_settings_that_make_no_sense_are_refused(
    on_disk: Stage, options: dict[str, object], problem: str
) -> None:
    @workflow("work.nothing.v1")
    async def nothing(ctx: Context) -> None:
        return None

    with pytest.raises(UsageError, match=problem):
        on_disk.engine(nothing).worker(**options)  # type: ignore[arg-type] # wrong on purpose


async def test_no_more_runs_are_worked_on_than_there_are_slots(stage: Stage) -> None:
    inside, most = 0, 0

    async def count() -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await asyncio.sleep(0)
        inside -= 1

    @workflow("work.slots.v1")
    async def counting(ctx: Context) -> None:
        await ctx.step(count)

    engine = stage.engine(counting)
    runs = await engine.start_many([counting() for _ in range(30)])
    async with engine.worker(slots=3):
        await asyncio.gather(*(run.result("20s") for run in runs))
    assert 1 <= most <= 3


async def test_waiting_runs_take_no_slot(stage: Stage) -> None:
    @workflow("work.wait.v1")
    async def waiting(ctx: Context) -> str:
        return await ctx.receive("word", str)

    engine = stage.engine(waiting)
    async with engine.worker(slots=2):
        runs = await engine.start_many([waiting() for _ in range(20)])
        for run in runs:
            await until(run, Status.WAITING)
        for run in runs:
            await run.send("word", "go")
        assert set(await asyncio.gather(*(run.result("20s") for run in runs))) == {"go"}


@pytest.mark.parametrize(("resident", "bodies"), [(100, 1), (0, 4)])
async def test_a_parked_run_goes_on_without_replay_while_it_stays_in_memory(
    stage: Stage, resident: int, bodies: int
) -> None:
    begun: list[str] = []

    @workflow("work.resident.v1")
    async def resident_workflow(ctx: Context) -> list[int]:
        begun.append(ctx.run_id)
        return [await ctx.receive("number", int) for _ in range(3)]

    engine = stage.engine(resident_workflow)
    async with engine.worker(resident=resident):
        run = await engine.start(resident_workflow())
        for number in range(3):
            await until(run, Status.WAITING)
            await run.send("number", number)
            await until_recorded(run, number + 1)
        assert await run.result("20s") == [0, 1, 2]
    assert len(begun) == bodies


async def test_the_longest_unused_run_leaves_memory_first_and_without_a_trace(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    begun: list[str] = []
    ended: list[str] = []

    @workflow("work.evicted.v1")
    async def evicted(ctx: Context) -> str:
        begun.append(ctx.run_id)
        try:
            return await ctx.receive("word", str)
        except BaseException:
            ended.append("caught")
            raise
        finally:
            ended.append("finally")

    engine = stage.engine(evicted)
    # On a busy machine a loop may be blocked for a tenth of a second, which would be in the log.
    async with engine.worker(resident=1, warn_blocked=0):
        one, two = [await engine.start(evicted(), id=name) for name in ("one", "two")]
        await until(one, Status.WAITING)
        await until(two, Status.WAITING)
        assert await one.history() == await two.history() == []
        for run in (one, two):
            await run.send("word", "go")
            assert await run.result("20s") == "go"
    assert sorted(begun) in (["one", "one", "two"], ["one", "one", "two", "two"], ["one", "two", "two"])
    # Threads that earlier tests left behind may log meanwhile, but not of these runs.
    # The client logs waits that take long.
    logged = [one for one in caplog.records if one.name != "perdure.client"]
    assert not [one for one in logged if one.name == "asyncio" or vars(one).get("run_id") in ("one", "two")]
    assert not [one for one in logged if re.search(r"\brun '?(one|two)\b", one.getMessage())]


async def test_a_run_is_kept_during_the_grace_period_while_any_of_its_steps_goes_on(on_disk: Stage) -> None:
    called: list[str] = []
    go_on = {name: asyncio.Event() for name in "ab"}

    async def act(name: str) -> str:
        called.append(name)
        await go_on[name].wait()
        return name

    @workflow("work.both.v1")
    async def both(ctx: Context) -> list[str]:
        return await asyncio.gather(*(ctx.step(act, name) for name in "ab"))

    engine = on_disk.engine(both)
    worker = engine.worker(grace="1h")
    await worker.start()
    run = await engine.start(both())
    await eventually(lambda: len(called) == 2)
    inner = worker._worker
    assert inner is not None
    stopping = asyncio.create_task(worker.stop())
    await eventually(lambda: inner.stopping)
    go_on["a"].set()
    await until_recorded(run, 1)
    go_on["b"].set()
    await stopping
    assert await run.status() is Status.COMPLETED
    assert called == ["a", "b"]


async def test_a_stop_that_is_cancelled_gives_the_runs_back_at_once(on_disk: Stage) -> None:
    entered = asyncio.Event()

    async def hold() -> None:
        entered.set()
        await asyncio.Event().wait()

    @workflow("work.held.v1")
    async def holding(ctx: Context) -> None:
        await ctx.step(hold)

    engine = on_disk.engine(holding)
    worker = engine.worker(grace="1h")
    await worker.start()
    run = await engine.start(holding())
    await entered.wait()
    stopping = asyncio.create_task(worker.stop())
    await asyncio.sleep(0.01)
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    # Another call waits for the end.
    await worker.stop()
    assert await run.status() is Status.PENDING
    assert [one.status for one in await engine.workers.list()] == [WorkerStatus.STOPPED]


async def test_a_stop_that_is_cancelled_during_a_claim_gives_back_what_the_claim_brings(on_disk: Stage) -> None:
    @workflow("work.late.v1")
    async def late(ctx: Context) -> None:
        await ctx.receive("never")

    engine = on_disk.engine(late)
    worker = engine.worker(grace="1h", lease="1h")
    await worker.start()
    store: Any = engine._session.store
    claim, begun, go_on = store.claim, asyncio.Event(), asyncio.Event()

    async def claim_late(request: Any) -> Any:
        answer = await claim(request)
        if answer.runs:
            begun.set()
            await go_on.wait()
        return answer

    store.claim = claim_late
    run = await engine.start(late())
    await begun.wait()
    stopping = asyncio.create_task(worker.stop())
    await asyncio.sleep(0.01)
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    go_on.set()
    await worker.stop()
    assert await run.status() in (Status.PENDING, Status.WAITING)


async def test_a_run_returns_to_the_worker_that_had_it(on_disk: Stage) -> None:
    begun: list[str] = []

    @workflow("work.home.v1")
    async def home(ctx: Context) -> list[int]:
        begun.append(ctx.run_id)
        return [await ctx.receive("number", int) for _ in range(10)]

    engines = [on_disk.engine(home, audit="full") for _ in range(2)]
    async with engines[0].worker() as one, engines[1].worker() as other:
        for worker in (one, other):
            assert worker._worker is not None
            # The usual 20 ms may pass before a busy machine lets the home worker claim.
            worker._worker.settings = replace(worker._worker.settings, affinity=3600.0)
        run = await engines[0].start(home())
        for number in range(10):
            await until(run, Status.WAITING)
            await engines[0].send(run.id, "number", number)
            await until_recorded(run, number + 1)
        assert await run.result("20s") == list(range(10))
        workers = {event.actor for event in await run.events() if event.kind in ("started", "claimed")}
    assert begun == [run.id]
    assert len(workers) == 1


async def test_two_workers_share_the_work_and_none_is_done_twice(on_disk: Stage) -> None:
    done: list[int] = []

    async def act(number: int) -> int:
        done.append(number)
        await asyncio.sleep(0)
        return number

    @workflow("work.share.v1")
    async def acting(ctx: Context, number: int) -> int:
        return await ctx.step(act, number)

    engines = [on_disk.engine(acting) for _ in range(2)]
    runs = await engines[0].start_many([acting(number) for number in range(200)])
    async with engines[0].worker(slots=5), engines[1].worker(slots=5):
        results = await asyncio.gather(*(run.result("30s") for run in runs))
    assert results == list(range(200))
    assert sorted(done) == list(range(200))


async def test_two_engines_in_one_process_know_nothing_of_each_other(tmp_path: Path) -> None:
    def make(answer: str) -> Engine:
        @workflow("work.answer.v1")
        async def answering(ctx: Context) -> str:
            return answer

        return Engine(f"sqlite:///{tmp_path / answer}.db", [answering])

    async with make("left") as left, make("right") as right, left.worker(), right.worker():
        [left_flow], [right_flow] = left.workflows.values(), right.workflows.values()
        one = await left.start(left_flow(), id="same")
        other = await right.start(right_flow(), id="same")
        assert (await one.result("20s"), await other.result("20s")) == ("left", "right")


async def test_two_engines_share_a_file_under_two_prefixes(tmp_path: Path) -> None:
    @workflow("work.prefix.v1")
    async def echo(ctx: Context, word: str) -> str:
        return word

    url = f"sqlite:///{tmp_path / 'shared.db'}"
    async with Engine(f"{url}?prefix=a_", [echo]) as a, Engine(f"{url}?prefix=b_", [echo]) as b:
        run = await a.start(echo("a"), id="one")
        await b.start(echo("b"), id="one")
        async with a.worker():
            assert await run.result("20s") == "a"
        assert (await (await b.get("one")).info()).status is Status.PENDING


async def test_two_workflows_of_one_type_are_refused(on_disk: Stage) -> None:
    @workflow("work.twin.v1")
    async def one(ctx: Context) -> None:
        return None

    @workflow("work.twin.v1")
    async def two(ctx: Context) -> None:
        return None

    with pytest.raises(UsageError, match=r"work\.twin\.v1"):
        on_disk.engine(one, two)


async def test_an_error_in_one_run_leaves_its_neighbours_alone(stage: Stage) -> None:
    @step(retry=Retry.never())
    async def act(number: int) -> int:
        if number % 3 == 0:
            raise ValueError(number)
        return number

    @workflow("work.mixed.v1")
    async def mixed(ctx: Context, number: int) -> int:
        return await ctx.step(act, number)

    engine = stage.engine(mixed)
    async with engine.worker():
        runs = await engine.start_many([mixed(number) for number in range(30)])
        results = await asyncio.gather(*(run.result("20s") for run in runs), return_exceptions=True)
    assert [result for result in results if isinstance(result, int)] == [n for n in range(30) if n % 3]


async def test_a_resident_run_takes_less_than_twenty_kilobytes(on_disk: Stage) -> None:
    count = 200

    @workflow("work.small.v1")
    async def small(ctx: Context) -> None:
        await ctx.receive("never")

    engine = on_disk.engine(small)
    async with engine.worker(resident=1000):
        warm = await engine.start(small())
        await until(warm, Status.WAITING)
        gc.collect()
        tracemalloc.start()
        before, _ = tracemalloc.get_traced_memory()
        runs = await engine.start_many([small() for _ in range(count)])
        await until(runs[-1], Status.WAITING)
        for run in runs:
            await until(run, Status.WAITING)
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert (after - before) / count < 20_000
