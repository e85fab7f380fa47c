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
from perdure.core.system import DUE, NO_TRACE, Cancellable, LoopTrace, System
from perdure.replay.run_loop import DrainContext
from perdure.worker.steps.step_task import CalledAttempt, StepCaller

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


#: Results that share one clock reading: what workflows do in between takes time, too.
_AT_ONCE = 64


class ResultRecipient(Blockable, Protocol):
    """A run that waits for the results of steps."""

    def step_ended(self, attempt: Any, result: Any, error: BaseException | None, reading: ClockReading) -> None:
        """Handle the end of an attempt at a step."""

    def step_returned(self, attempt: Any, result: Any, reading: ClockReading) -> None:
        """Handle the end of an attempt whose function has returned; `step_ended` may be called instead."""

    def emit(self, attempt: Any, stream: str, value: object) -> None:
        """Emit an item of a step. Called from any thread."""

    def credentials(self) -> Mapping[str, Any]:
        """Return the credentials that were given for the run. Called from any thread."""

    def headers(self) -> Headers:
        """Return the headers of the run. Called from any thread."""

    def run_fields(self) -> dict[str, object]:
        """Return fields of log records about the run. Called from any thread."""


class EndingAttempt(Protocol):
    """An attempt that has ended, unless it was closed before."""

    recipient: ResultRecipient

    def close(self) -> bool:
        """Close the attempt; True if it was open."""


class BegunAttempt(EndingAttempt, CalledAttempt, Protocol):
    """An attempt that begins without a task."""

    #: Whether `function_ended` is to be called.
    is_traced: bool
    #: Timer of its timeout.
    pending: Cancellable | None

    def function_ended(self, error: BaseException | None) -> None:
        """Note the end of the function, before the run hears of it."""


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
        self._calls: list[BegunAttempt] = []
        #: Context variables of the worker. A callback that a step asks for runs in this context; in that of the step,
        #: it would pass the step's variables on to the steps that it begins.
        self.context = copy_context()

    def add(self, attempt: EndingAttempt, result: Any, error: BaseException | None) -> None:
        """Hand a result to the attempt's run soon."""
        self._waiting.append((attempt, result, error))
        if len(self._waiting) == 1:
            asyncio.get_running_loop().call_soon(self._hand_over, context=self.context)

    def call(self, attempt: BegunAttempt) -> None:
        """Call the function of an async step soon."""
        self._calls.append(attempt)
        if len(self._calls) == 1:
            asyncio.get_running_loop().call_soon(self._call_all, context=self.context)

    def _call_all(self) -> None:
        """Call functions, and tell their runs. In parts, so that what is told is not older than a part."""
        calls, self._calls = self._calls, []
        loop, trace = asyncio.get_running_loop(), self.trace
        if not trace.waiting[DUE]:
            trace.note(trace)
        caller, reading = StepCaller(loop), None
        self._journal.hold()
        try:
            for start in range(0, len(calls), _AT_ONCE):
                ended: list[BegunAttempt] = []
                for attempt in calls[start : start + _AT_ONCE]:
                    if attempt.over or attempt.timed_out is not None:
                        continue
                    if caller.call(attempt):
                        ended.append(attempt)
                    else:
                        caller = StepCaller(loop)
                    if not trace.waiting[DUE]:
                        trace.note(attempt)
                with DrainContext() as drain_context:
                    reading = self._read_clock(drain_context)
                    self._tell_ended(ended, reading)
        except BaseException:
            self._journal.flush_later()
            raise
        assert reading is not None
        self._journal.flush(reading)

    def _tell_ended(self, ended: list[BegunAttempt], reading: ClockReading) -> None:
        crash_point = self._system.crash_point
        for attempt in ended:
            if (error := attempt.error) is not None:
                # It refers to the frame that called the function; without the cycle it is freed at once.
                attempt.error = None
            if attempt.is_traced:
                attempt.function_ended(error)
            if attempt.over:
                continue
            attempt.over = True
            if attempt.pending is not None:
                attempt.pending.cancel()
            if crash_point is not None:
                crash_point("step.returned")
            recipient = attempt.recipient
            try:
                if error is None:
                    recipient.step_returned(attempt, attempt.result, reading)
                else:
                    recipient.step_ended(attempt, None, error, reading)
            except Exception as failure:
                recipient.block(failure)

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
