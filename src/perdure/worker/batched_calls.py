"""Batched calls into the runs that a worker holds: one clock reading for many, and errors contained.

Runs are called from plain callbacks of the loop, never inside a task. Steps that began together tend to end together,
so all results that have come by then share one clock reading and one entered drain context (both cost as much as a
short step), and their turns leave for the database together. Claimed runs begin the same way. An exception in a
callback would only be logged and leave the run held for ever; a guarded method blocks its run instead, and other runs
go on.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, TypeVarTuple

from msgspec import Struct

from perdure.core.model.headers import Headers
from perdure.core.system import NO_TRACE, LoopTrace, System
from perdure.replay.run_loop import DrainContext

if TYPE_CHECKING:
    from perdure.worker.run.held_run import HeldRun


class ClockReading(Struct, frozen=True):
    """The time and the state of the lease, read once for many runs."""

    #: Time of the database, in microseconds. It is what histories contain.
    now: int
    #: Whether the lease is safe enough to begin something new.
    may_start: bool
    #: Entered drain context, if several runs share it.
    drain_context: DrainContext | None = None


class Blockable(Protocol):
    """An object that can be blocked after an error."""

    def block(self, error: Exception) -> None:
        """Block the run because of an error."""


A = TypeVarTuple("A")
B = TypeVar("B", bound=Blockable)


def guarded(method: Callable[[B, *A], None]) -> Callable[[B, *A], None]:
    """Make a method that never raises: an error blocks its object. Arguments are positional."""

    def call(self: B, *args: *A) -> None:
        try:
            method(self, *args)
        except Exception as error:
            self.block(error)

    return call


def is_executed_by(task: asyncio.Task[Any] | None) -> bool:
    """True if that task executes the caller; False if the coroutine is being closed because its loop is gone."""
    try:
        return task is not None and asyncio.current_task() is task
    except RuntimeError:
        return False


def is_end_of(task: asyncio.Task[Any] | None, error: BaseException) -> bool:
    """True if an error from user code is the end of the calling task: it was cancelled, or closed with its loop."""
    if isinstance(error, asyncio.CancelledError):
        return task is None or task.cancelling() > 0
    return isinstance(error, GeneratorExit) and not is_executed_by(task)


#: Results that share one clock reading: what workflows do in between takes time, too.
_AT_ONCE = 64


class ResultRecipient(Blockable, Protocol):
    """A run that waits for the results of steps."""

    def step_ended(self, attempt: Any, result: Any, error: BaseException | None, reading: ClockReading) -> None:
        """Handle the end of an attempt at a step."""

    def emit(self, attempt: Any, stream: str, value: object) -> None:
        """Emit an item of a step. Called from any thread."""

    def credentials(self) -> Mapping[str, Any]:
        """Return the credentials that were given for the run. Called from any thread."""

    def headers(self) -> Headers:
        """Return the headers of the run. Called from any thread."""


class EndingAttempt(Protocol):
    """An attempt that has ended, unless it was closed before."""

    recipient: ResultRecipient

    def close(self) -> bool:
        """Close the attempt; True if it was open."""


class Flushable(Protocol):
    """The journal, as the sender of turns in batches."""

    def hold(self) -> None:
        """Hold back turns that are submitted from now on."""

    def flush(self, reading: ClockReading) -> None:
        """Send the turns that were held back."""

    def flush_later(self) -> None:
        """Stop holding back after an error; the turns leave in a later callback."""


class StepResults:
    """Results of steps, handed to their runs together."""

    def __init__(
        self,
        system: System,
        read_clock: Callable[[DrainContext], ClockReading],
        journal: Flushable,
        trace: LoopTrace = NO_TRACE,
    ) -> None:
        #: Trace of the loop on which async steps are executed.
        self.trace = trace
        self._system = system
        self._read_clock = read_clock
        self._journal = journal
        self._waiting: list[tuple[EndingAttempt, Any, BaseException | None]] = []
        #: Context variables of the worker. A callback that a step asks for runs in this context; in that of the step,
        #: it would pass the step's variables on to the steps that it begins.
        self.context = copy_context()

    def add(self, attempt: EndingAttempt, result: Any, error: BaseException | None) -> None:
        """Hand a result to the attempt's run soon."""
        self._waiting.append((attempt, result, error))
        if len(self._waiting) == 1:
            asyncio.get_running_loop().call_soon(self._hand_over, context=self.context)

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
                    if self._system.crash_point is not None:
                        self._system.crash_point("step.returned")
                    recipient = attempt.recipient
                    try:
                        recipient.step_ended(attempt, result, error, reading)
                    except Exception as failure:
                        recipient.block(failure)
        return reading


#: Runs that begin with one clock reading.
_RUNS_AT_ONCE = 32


class RunStarts:
    """Claimed runs that begin together.

    Where commits overlap they begin in parts, so that the first parts are at work while the rest begin. With one commit
    at a time they begin all at once, because what begins together is written together.
    """

    def __init__(self, read_clock: Callable[[DrainContext], ClockReading], *, in_parts: bool) -> None:
        self._read_clock = read_clock
        self._at_once = _RUNS_AT_ONCE if in_parts else sys.maxsize
        self._waiting: list[HeldRun] = []

    def add(self, held: HeldRun) -> None:
        """Begin a run soon."""
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
                try:
                    held.begin(reading)
                except Exception as error:
                    held.block(error)
