"""Items and heartbeat details that an attempt gives in the turn of the loop in which it ends.

Many attempts end in one turn of the loop here: the end of the first is queued before the announcements of the others.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest

from perdure import (
    ActivityInfo,
    Context,
    Engine,
    Fatal,
    Handle,
    Retry,
    RunCancelled,
    RunFailed,
    StepTimeout,
    activity,
    activity_info,
    step,
    step_info,
    workflow,
)
from perdure.core.model.turn import Turn, TurnOutcome
from perdure.worker.commit.journal import Journal
from perdure.workflow.discover import Definable
from tests.helpers import eventually
from tests.stage import Stage
from tests.workflow.crunching import tells_and_fails

#: Attempts that end together.
MANY = 20

AT_ONCE = Retry.fixed("1ms", attempts=3)


class Gate:
    """Lets as many tasks as are expected pass in one turn of the loop; the last one first."""

    def __init__(self, parties: int = MANY, opens: Callable[[], object] = lambda: None) -> None:
        self._parties = parties
        self._opens = opens
        self._arrived = 0
        self._open = asyncio.Event()

    async def passed(self) -> None:
        """Wait for the others."""
        self._arrived += 1
        if self._arrived == self._parties:
            self._opens()
            self._open.set()
        await self._open.wait()


async def words(run: Handle[Any]) -> list[Any]:
    """The items of a run's stream, in order."""
    return [item.value async for item in run.stream("words", follow=False)]


async def all_words(runs: list[Handle[Any]]) -> list[list[Any]]:
    """The streams of all runs, each once it has ended."""
    for run in runs:
        try:
            await run.result("60s")
        except (RunFailed, RunCancelled):
            pass
    return [await words(run) for run in runs]


async def start_all(engine: Engine, flow: Any) -> list[Handle[Any]]:
    """Start as many runs as end together."""
    return await engine.start_many([flow(number) for number in range(MANY)])


def slots(stage: Stage, *served: Definable) -> Any:
    """An engine and its worker, with room for all runs at once."""
    engine = stage.engine(*served)
    return engine, engine.worker(slots=2 * MANY)


async def test_items_that_steps_emit_as_they_return_are_in_the_stream(stage: Stage) -> None:
    gate = Gate()

    async def say() -> None:
        await gate.passed()
        step_info().emit("words", "first")
        step_info().emit("words", "last")

    @workflow("last.returns.v1")
    async def flow(ctx: Context, number: int) -> None:
        await ctx.step(say)
        ctx.emit("words", "after")

    engine, worker = slots(stage, flow)
    async with worker:
        assert await all_words(await start_all(engine, flow)) == [["first", "last", "after"]] * MANY


@pytest.mark.parametrize(
    "error", [Fatal("no use"), asyncio.CancelledError(), SystemExit(3)], ids=["fatal", "self", "exit"]
)
async def test_items_that_steps_emit_as_they_fail_are_in_the_stream(stage: Stage, error: BaseException) -> None:
    gate = Gate()

    @step(retry=Retry.never())
    async def say() -> None:
        await gate.passed()
        step_info().emit("words", "last")
        raise error

    @workflow("last.fails.v1")
    async def flow(ctx: Context, number: int) -> None:
        await ctx.step(say)

    engine, worker = slots(stage, flow)
    async with worker:
        assert await all_words(await start_all(engine, flow)) == [["last"]] * MANY


async def test_items_of_attempts_that_are_made_again_are_in_the_stream_in_order(stage: Stage) -> None:
    gates: defaultdict[int, Gate] = defaultdict(Gate)

    @step(retry=AT_ONCE)
    async def say() -> None:
        attempt = step_info().attempt
        await gates[attempt].passed()
        step_info().emit("words", attempt)
        if attempt < 3:
            raise ConnectionError

    @workflow("last.again.v1")
    async def flow(ctx: Context, number: int) -> None:
        await ctx.step(say)

    engine, worker = slots(stage, flow)
    async with worker:
        assert await all_words(await start_all(engine, flow)) == [[1, 2, 3]] * MANY


async def test_items_that_steps_emit_as_they_time_out_are_in_the_stream(stage: Stage) -> None:
    # All timers are due when the loop goes on, and none before all steps have begun.
    gate = Gate(opens=lambda: time.sleep(4.1))

    @step(retry=Retry.never(), timeout=4.0)
    async def say() -> None:
        await gate.passed()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            step_info().emit("words", "last")
            raise

    @workflow("last.timeout.v1")
    async def flow(ctx: Context, number: int) -> str:
        try:
            await ctx.step(say)
        except StepTimeout:
            return "too late"
        return "in time"

    engine, worker = slots(stage, flow)
    async with worker:
        runs = await start_all(engine, flow)
        assert await all_words(runs) == [["last"]] * MANY
        assert {await run.result() for run in runs} == {"too late"}


async def test_items_of_steps_that_their_workflow_gives_up_are_in_the_stream(stage: Stage) -> None:
    gate = Gate(2 * MANY)

    async def say() -> None:
        await gate.passed()
        step_info().emit("words", "last")
        await asyncio.Event().wait()

    async def end() -> None:
        await gate.passed()
        # The last one passes at once; the others do with the next turn of the loop.
        await asyncio.sleep(0)

    @workflow("last.given-up.v1")
    async def flow(ctx: Context, number: int) -> None:
        saying = asyncio.ensure_future(ctx.step(say))
        await ctx.step(end)
        saying.cancel()

    engine, worker = slots(stage, flow)
    async with worker:
        assert await all_words(await start_all(engine, flow)) == [["last"]] * MANY


async def test_items_of_steps_of_runs_that_are_set_aside_are_in_the_stream(stage: Stage) -> None:
    gate = Gate(2 * MANY)
    blocked = True

    async def say() -> None:
        await gate.passed()
        step_info().emit("words", "last")
        await asyncio.Event().wait()

    async def end() -> None:
        await gate.passed()
        # The last one passes at once; the others do with the next turn of the loop.
        await asyncio.sleep(0)

    @workflow("last.blocked.v1")
    async def flow(ctx: Context, number: int) -> None:
        saying = asyncio.ensure_future(ctx.step(say))
        await ctx.step(end)
        saying.cancel()
        if blocked:
            asyncio.get_running_loop().call_later(1, print)

    engine, worker = slots(stage, flow)
    async with worker:
        runs = await start_all(engine, flow)
        for run in runs:
            await eventually(lambda run=run: words(run), saying=f"the stream of {run!r}")  # type: ignore[misc] # mypy infers no type for the default of a lambda


async def test_items_of_threads_are_in_the_stream_in_order(stage: Stage) -> None:
    barrier = threading.Barrier(MANY)

    @step(retry=AT_ONCE)
    def say() -> None:
        barrier.wait(60)
        for number in range(5):
            step_info().emit("words", [step_info().attempt, number])
        if step_info().attempt == 1:
            raise ConnectionError

    @workflow("last.threads.v1")
    async def flow(ctx: Context, number: int) -> None:
        await ctx.step(say)

    engine, worker = slots(stage, flow)
    async with worker:
        expected = [[attempt, number] for attempt in (1, 2) for number in range(5)]
        assert await all_words(await start_all(engine, flow)) == [expected] * MANY


async def test_items_of_a_process_that_fails_are_in_the_stream(on_disk: Stage) -> None:
    @workflow("last.process.v1")
    async def flow(ctx: Context) -> None:
        with pytest.raises(LookupError):
            await ctx.step(tells_and_fails, 3)

    engine = on_disk.engine(flow)
    async with engine.worker(step_processes=1):
        run = await engine.start(flow())
        await run.result("60s")
    assert await words(run) == [0, 1, 2]


async def test_items_of_transactions_are_in_the_stream_before_what_follows(stage: Stage) -> None:
    # As many as a pool has connections for; on SQLite there is one transaction at a time.
    few = 3 if stage.url.startswith(("postgres", "mysql")) else 1
    gates: defaultdict[int, Gate] = defaultdict(lambda: Gate(few))

    @step(retry=AT_ONCE)
    async def say(connection: Any) -> None:
        attempt = step_info().attempt
        if few > 1:
            await gates[attempt].passed()
        step_info().emit("words", attempt)
        if attempt == 1:
            raise ConnectionError

    @workflow("last.transaction.v1")
    async def flow(ctx: Context, number: int) -> None:
        await ctx.transaction(say)
        ctx.emit("words", "after")

    engine, worker = slots(stage, flow)
    async with worker:
        runs = await engine.start_many([flow(number) for number in range(few)])
        assert await all_words(runs) == [[1, 2, "after"]] * few


async def test_items_of_a_transaction_are_durable_with_its_record(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = asyncio.Event()
    commit = Journal._commit

    async def held_up(self: Journal, turns: list[Turn], actor: str) -> list[TurnOutcome]:
        if any(turn.next is not None for turn in turns):
            await go_on.wait()
        return await commit(self, turns, actor)

    async def say(connection: Any) -> None:
        step_info().emit("words", "last")

    @workflow("last.durable.v1")
    async def flow(ctx: Context) -> None:
        await ctx.transaction(say)

    monkeypatch.setattr(Journal, "_commit", held_up)
    engine, worker = slots(stage, flow)
    async with worker:
        run = await engine.start(flow())
        await eventually(run.history)
        assert await words(run) == ["last"]
        [(at,)] = await stage.rows("SELECT at FROM perdure_outputs WHERE kind = 'stream'")
        assert abs(at - time.time() * 1e6) < 600e6
        go_on.set()
        await run.result("60s")
    assert await words(run) == ["last"]


async def test_a_transaction_that_emits_leaves_no_empty_turns_behind(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = Journal._commit
    empty: list[Turn] = []

    async def seen(self: Journal, turns: list[Turn], actor: str) -> list[TurnOutcome]:
        empty.extend(turn for turn in turns if not (turn.records or turn.outputs or turn.next))
        return await commit(self, turns, actor)

    async def say(connection: Any) -> None:
        step_info().emit("words", "last")

    async def wait() -> None:
        await asyncio.sleep(0.3)  # longer than the transaction beside it, which is all that it is for

    @workflow("last.empty.v1")
    async def flow(ctx: Context) -> None:
        await asyncio.gather(ctx.step(wait), ctx.transaction(say))

    monkeypatch.setattr(Journal, "_commit", seen)
    engine, worker = slots(stage, flow)
    async with worker:
        run = await engine.start(flow())
        await run.result("60s")
    assert await words(run) == ["last"]
    assert not empty


async def test_items_that_activities_emit_as_they_end_are_in_the_stream(stage: Stage) -> None:
    gates: defaultdict[int, Gate] = defaultdict(Gate)

    @activity("last.act.v1", retry=AT_ONCE)
    async def act(number: int) -> None:
        attempt = activity_info().attempt
        await gates[attempt].passed()
        activity_info().emit("words", attempt)
        if attempt < 3:
            raise ConnectionError
        if number % 2:
            raise Fatal("no use")

    engine, worker = slots(stage, act)
    async with worker:
        assert await all_words(await start_all(engine, act)) == [[1, 2, 3]] * MANY


async def test_items_of_activities_that_are_cancelled_are_in_the_stream(stage: Stage) -> None:
    gate = Gate()
    told = 0

    @activity("last.cancelled.v1", retry=Retry.never())
    async def act(number: int) -> None:
        nonlocal told
        told += 1
        await activity_info().cancelled()
        await gate.passed()
        activity_info().emit("words", "last")
        raise ConnectionError

    engine, worker = slots(stage, act)
    async with worker:
        runs = await start_all(engine, act)
        await eventually(lambda: told == MANY)
        for run in runs:
            await run.cancel()
        assert await all_words(runs) == [["last"]] * MANY


def _beating(info: ActivityInfo, given: dict[int, list[Any]], number: int) -> None:
    given[number].append(info.last_heartbeat)
    for house in range(info.attempt * 10):
        info.heartbeat(house)
    if info.attempt < 3:
        raise ConnectionError


async def test_the_next_attempt_is_given_the_last_details_of_the_one_before(stage: Stage) -> None:
    gates: defaultdict[int, Gate] = defaultdict(Gate)
    given: defaultdict[int, list[Any]] = defaultdict(list)

    @activity("last.beat.v1", retry=AT_ONCE)
    async def beat(number: int) -> None:
        await gates[activity_info().attempt].passed()
        _beating(activity_info(), given, number)

    engine, worker = slots(stage, beat)
    async with worker:
        for run in await start_all(engine, beat):
            await run.result("60s")
    assert given == {number: [None, 9, 19] for number in range(MANY)}
    rows = await stage.rows("SELECT payload FROM perdure_outputs WHERE kind = 'beat'")
    assert rows == [("29",)] * MANY


async def test_the_next_attempt_is_given_the_last_details_of_a_thread(stage: Stage) -> None:
    given: defaultdict[int, list[Any]] = defaultdict(list)
    barrier = threading.Barrier(MANY)

    @activity("last.thread-beat.v1", retry=AT_ONCE)
    def beat(number: int) -> None:
        barrier.wait(60)
        _beating(activity_info(), given, number)

    engine, worker = slots(stage, beat)
    async with worker:
        for run in await start_all(engine, beat):
            await run.result("60s")
    assert given == {number: [None, 9, 19] for number in range(MANY)}


async def test_a_worker_that_stops_leaves_the_last_details_to_the_next(on_disk: Stage) -> None:
    gate = Gate(MANY + 1)
    given: defaultdict[int, list[Any]] = defaultdict(list)

    @activity("last.stop.v1")
    async def beat(number: int) -> None:
        given[number].append(activity_info().last_heartbeat)
        if len(given[number]) == 1:
            activity_info().heartbeat("early")
            await gate.passed()
            activity_info().heartbeat("last")
            activity_info().emit("words", "last")
            await asyncio.Event().wait()

    engine, worker = slots(on_disk, beat)
    async with worker:
        runs = await start_all(engine, beat)
        await gate.passed()
    async with engine.worker():
        assert await all_words(runs) == [["last"]] * MANY
    assert given == {number: [None, "last"] for number in range(MANY)}
