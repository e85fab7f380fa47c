"""Ends of single attempts at steps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from perdure import StepTimeout
from perdure.core.system import Cancellable
from perdure.host import Host
from perdure.replay.operations import StepOperation
from perdure.replay.run_loop import RunLoop, new_operation_future
from perdure.worker.batched_calls import ClockReading, StepResults
from perdure.worker.steps.attempt import Attempt
from perdure.worker.steps.threads import StepThreads
from perdure.workflow.runtime import StepRequest
from perdure.workflow.step import StepSettings, spec_of

NOW = ClockReading(1_700_000_000_000_000, may_start=True)


class Timers(Host):
    """Calls back when told to."""

    def __init__(self) -> None:
        super().__init__()
        self.set: list[Callable[[], object]] = []

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Cancellable:
        self.set.append(callback)
        return asyncio.get_running_loop().create_future()


class Run:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.ends: list[tuple[Any, BaseException | None]] = []
        self.broken: list[Exception] = []

    def step_ended(self, attempt: Any, result: Any, error: BaseException | None, reading: ClockReading) -> None:
        self.ends.append((result, error))

    def step_returned(self, attempt: Any, result: Any, reading: ClockReading) -> None:
        self.step_ended(attempt, result, None, reading)

    def emit(self, attempt: Any, stream: str, value: object) -> None:
        raise AssertionError

    def credentials(self) -> Mapping[str, Any]:
        return {}

    def headers(self) -> Mapping[str, str]:
        return {}

    def run_fields(self) -> dict[str, object]:
        return {}

    def block(self, error: Exception) -> None:
        self.broken.append(error)


class NoTimers:
    def add_timer(self, when: float, handle: Any, *, is_sleep: bool) -> None:
        raise AssertionError

    def drop_timer(self, handle: Any) -> None:
        raise AssertionError

    @property
    def log_fields(self) -> dict[str, object]:
        return {}


class Nowhere:
    """A journal that ignores everything."""

    def hold(self) -> None:
        pass

    def flush(self, reading: ClockReading) -> None:
        pass

    def flush_later(self) -> None:
        pass


def begin(function: Callable[..., Any], system: Host, run: Run, timeout: float | None = None) -> Attempt:
    options = StepSettings() if timeout is None else StepSettings(timeout=timeout)
    loop = RunLoop("run-1", NoTimers())
    future = new_operation_future(loop, loop.root, "step", None)
    operation = StepOperation("step", future, StepRequest("step", spec_of(function), (), {}, options), "")
    attempt = Attempt(operation, "run-1", NOW.now, system, StepResults(system, lambda _: NOW, Nowhere()), run)
    attempt.start(StepThreads(10), NOW.now * 2)
    return attempt


async def turns_of_the_loop(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_step_whose_time_is_over_before_its_task_began_is_told_at_once() -> None:
    system, run, called = Timers(), Run(), []

    async def step() -> None:
        called.append(1)

    begin(step, system, run, timeout=1.0)
    system.set[0]()
    await turns_of_the_loop()
    assert [type(error) for _, error in run.ends] == [StepTimeout]
    assert called == []


async def test_a_step_that_ends_just_when_its_patience_does_ends_once() -> None:
    system, run, go = Timers(), Run(), asyncio.Event()

    async def step() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await go.wait()
        return "late"

    begin(step, system, run, timeout=1.0)
    await turns_of_the_loop()
    system.set[0]()
    await turns_of_the_loop()
    assert run.ends == []
    go.set()
    system.set[1]()
    await turns_of_the_loop()
    assert [(result, type(error)) for result, error in run.ends] == [(None, StepTimeout)]


async def test_a_result_that_is_not_wanted_any_more_is_not_told() -> None:
    system, run = Timers(), Run()

    async def step() -> str:
        await asyncio.sleep(0)
        return "done"

    attempt = begin(step, system, run)
    await turns_of_the_loop(2)
    attempt.cancel()
    await turns_of_the_loop()
    assert run.ends == []


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), ValueError("no")])
async def test_whatever_a_step_raises_reaches_its_run_and_no_other(error: BaseException) -> None:
    system, run = Timers(), Run()

    async def step() -> None:
        raise error

    begin(step, system, run)
    await turns_of_the_loop()
    assert run.ends == [(None, error)]


async def test_a_run_that_breaks_on_its_result_does_not_keep_it_from_its_neighbours() -> None:
    system = Timers()

    class Broken(Run):
        def step_ended(self, attempt: Any, result: Any, error: BaseException | None, reading: ClockReading) -> None:
            raise ValueError("cannot")

    broken, whole = Broken(), Run()

    async def step() -> int:
        return 1

    begin(step, system, broken)
    begin(step, system, whole)
    await turns_of_the_loop()
    assert [str(error) for error in broken.broken] == ["cannot"]
    assert whole.ends == [(1, None)]
