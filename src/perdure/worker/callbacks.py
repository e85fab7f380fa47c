"""Results of steps that came in, handed to their runs together.

Steps that were begun together tend to end together. Each is told to its run from a plain callback of the loop, never inside a
task, and all that have come by then share one look at the clocks, and leave for the database together.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, TypeVarTuple

from msgspec import Struct

from perdure.core.system import System
from perdure.replay.run_loop import DrainContext

if TYPE_CHECKING:
    from perdure.worker.run.held_run import HeldRun


class ClockReading(Struct, frozen=True):
    """One look at the clocks and at the loop."""

    #: The database's time.
    now: int
    #: Whether the lease is safe enough to begin something new.
    may_start: bool
    #: What runs are drained in, if it was entered for several of them.
    drain_context: DrainContext | None = None


class Blockable(Protocol):
    """Something that can be set aside when it breaks."""

    def block(self, error: Exception) -> None:
        """Set it aside because of an error."""


A = TypeVarTuple("A")
B = TypeVar("B", bound=Blockable)


def guarded(method: Callable[[B, *A], None]) -> Callable[[B, *A], None]:
    """A method that never raises: its error sets the object aside. Its arguments go by position."""

    def call(self: B, *args: *A) -> None:
        try:
            method(self, *args)
        except Exception as error:
            self.block(error)

    return call


def runs(task: asyncio.Task[Any] | None) -> bool:
    """Whether the caller is executed by that task, rather than closed from outside because its loop is gone."""
    try:
        return task is not None and asyncio.current_task() is task
    except RuntimeError:
        return False


def is_end_of(task: asyncio.Task[Any] | None, error: BaseException) -> bool:
    """Whether an error that came out of user code is the end of the task that called it: cancelled, or closed with its loop."""
    if isinstance(error, asyncio.CancelledError):
        return task is None or task.cancelling() > 0
    return isinstance(error, GeneratorExit) and not runs(task)


#: So many share one look at the clocks: what their workflows do then takes time too.
_AT_ONCE = 64


class ResultRecipient(Blockable, Protocol):
    """Whoever waits for the result of a step."""

    def step_ended(self, attempt: Any, result: Any, error: BaseException | None, reading: ClockReading) -> None:
        """An attempt at one of its steps is over."""

    def emit(self, attempt: Any, stream: str, value: object) -> None:
        """An attempt at one of its steps has something for others to see. From any thread."""

    def credentials(self) -> Mapping[str, Any]:
        """What was given for the run, by the one who asked for it to be worked on. From any thread."""


class EndingAttempt(Protocol):
    """An attempt that is over, unless it is closed first."""

    recipient: ResultRecipient

    def close(self) -> bool:
        """Whether it was open."""


class Flushable(Protocol):
    """Where what follows from results is gathered until it leaves for the database."""

    def hold(self) -> None:
        """Wait with what comes from now on."""

    def flush(self, reading: ClockReading) -> None:
        """That was all of it."""

    def flush_later(self) -> None:
        """Wait no longer, though there may be more."""


class StepResults:
    """See the module."""

    def __init__(self, system: System, read_clock: Callable[[DrainContext], ClockReading], journal: Flushable) -> None:
        self._system = system
        self._read_clock = read_clock
        self._journal = journal
        self._waiting: list[tuple[EndingAttempt, Any, BaseException | None]] = []

    def add(self, attempt: EndingAttempt, result: Any, error: BaseException | None) -> None:
        """Tell the attempt's run soon."""
        self._waiting.append((attempt, result, error))
        if len(self._waiting) == 1:
            asyncio.get_running_loop().call_soon(self._hand_over)

    def _hand_over(self) -> None:
        waiting, self._waiting = self._waiting, []
        self._journal.hold()
        try:
            with DrainContext() as drain_context:
                reading = self._tell(waiting, drain_context)
        except BaseException:
            self._journal.flush_later()
            raise
        self._journal.flush(reading)

    def _tell(
        self, waiting: list[tuple[EndingAttempt, Any, BaseException | None]], drain_context: DrainContext
    ) -> ClockReading:
        reading = self._read_clock(drain_context)
        for start in range(0, len(waiting), _AT_ONCE):
            if start:
                reading = self._read_clock(drain_context)
            for attempt, result, error in waiting[start : start + _AT_ONCE]:
                if attempt.close():
                    self._system.crash_point("step.returned")
                    recipient = attempt.recipient
                    try:
                        recipient.step_ended(attempt, result, error, reading)
                    except Exception as failure:
                        recipient.block(failure)
        return reading


#: So many begin with one look at the clocks.
_RUNS_AT_ONCE = 32


class RunStarts:
    """See the module."""

    def __init__(self, read_clock: Callable[[DrainContext], ClockReading], *, in_parts: bool) -> None:
        self._read_clock = read_clock
        self._at_once = _RUNS_AT_ONCE if in_parts else sys.maxsize
        self._waiting: list[HeldRun] = []

    def add(self, held: HeldRun) -> None:
        """Begin it soon."""
        self._waiting.append(held)
        if len(self._waiting) == 1:
            asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        part, self._waiting = self._waiting[: self._at_once], self._waiting[self._at_once :]
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._begin)
        with DrainContext() as drain_context:
            reading = self._read_clock(drain_context)
            for held in part:
                held.begin(reading)
