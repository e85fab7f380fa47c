"""Outcomes of workflows: completed, failed, cancelled, or continued as new; and the undo that precedes some.

For the error about an operation that was never awaited, it finds the line of the workflow that asked for it
(`perdure.workflow.call_sites`), in the source of the workflow function, when the run has failed already.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from contextvars import Context as ContextVars
from pathlib import PurePath
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from perdure.core.codec.codec import Codec
from perdure.core.codec.failure import Failure
from perdure.core.model.run import Status
from perdure.errors import BadArguments, DecodeError, NeverAwaited, PerdureError, RunCancelled
from perdure.replay.run_loop import RunLoop, RunTask
from perdure.workflow.call_sites import call_sites, operation_name
from perdure.workflow.definition import Call
from perdure.workflow.runtime import ContinueAsNewSignal
from perdure.workflow.saga import UndoLog

# Looking up an enum member through its class is slow; this one is needed for every run.
_COMPLETED = Status.COMPLETED


class RunOutcome(Struct, frozen=True):
    """The end of a run, as it is stored."""

    status: Status
    #: The result, or a `Failure`, as JSON.
    payload: str | None
    #: The exception that the workflow raised.
    error: BaseException | None = None
    #: The call that a run continues as new with; the status has no meaning then.
    renewed: Call[Any] | None = None
    #: True: the run was undone, so no further attempt may follow. False: one has to follow, which goes on from there.
    final: bool | None = None
    #: The code is broken: the run is blocked, and goes on from here with other code.
    broken: bool = False
    #: JSON of the value that the code of a cancelled run returned.
    partial: str | None = None


class BrokenCode(Exception):
    """The code raised an error that says that it is broken, while the history was replayed. The error is the cause."""


class CodeHalted(BaseException):
    """Ends a drain of the loop, because the code is broken."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


class OutcomeContext(Struct, frozen=True):
    """Values needed to make an outcome."""

    run_id: str
    type: str
    returns: Any
    codec: Codec
    #: The workflow function, for errors that point into its source.
    function: Callable[..., Any] | None = None


def outcome_of(main: asyncio.Task[Any], ending: OutcomeContext, forgotten: list[str], *, stopped: bool) -> RunOutcome:
    """Make the outcome of a finished workflow; `forgotten`: operations that nothing awaited."""
    if main.cancelled():
        reason = _reason(main)
        if not stopped:
            return failed(asyncio.CancelledError(*reason), ending.codec)
        because = str(reason[0]) if reason and reason[0] else ""  # equivalent: condition: an empty reason is as none
        return cancelled(ending.run_id, ending.type, because, ending.codec)
    raised = main.exception()
    if isinstance(raised, ContinueAsNewSignal):
        return _renewed(raised.call, ending)
    if raised is not None:
        return failed(raised, ending.codec)
    if forgotten:
        places = ", ".join(describe_forgotten(label, ending.function) for label in forgotten)
        message = f"the workflow {ending.type} ended without awaiting {places}; await each operation, or gather them"
        return failed(NeverAwaited(message), ending.codec)
    return _completed(main.result(), ending)


def cancelled(
    run_id: str,
    type: str,
    reason: str,
    codec: Codec,
    *,
    partial: str | None = None,
    cause: BaseException | None = None,
) -> RunOutcome:
    """Make the outcome of a cancelled run.

    `partial`: JSON of the value that its code returned all the same; `cause`: the error that its code raised instead.
    """
    # Not a CancelledError: a parent gets the error, too, and would take that for its own cancellation.
    because = f": {reason}" if reason else ""
    error = RunCancelled(f"run {run_id!r} ({type}) was cancelled{because}", run_id=run_id)
    error.__cause__ = cause
    failure = Failure.of(error, codec)
    if partial is not None:
        failure = replace(failure, partial=partial)
    return RunOutcome(Status.CANCELLED, failure.to_json(), error, partial=partial)


def stopped(outcome: RunOutcome, ending: OutcomeContext, reason: str) -> RunOutcome:
    """Make the outcome of a cancelled run whose code ended in its own way: it returned, failed or continued as new."""
    if outcome.status is Status.CANCELLED:
        return outcome
    # A function without a result returns None, which is no partial result.
    partial = outcome.payload if outcome.status is _COMPLETED and outcome.payload != "null" else None
    return cancelled(ending.run_id, ending.type, reason, ending.codec, partial=partial, cause=outcome.error)


def _renewed(call: Call[Any], ending: OutcomeContext) -> RunOutcome:
    try:
        return RunOutcome(Status.PENDING, call.encode(ending.codec), renewed=call)
    except PerdureError as error:
        return failed(error, ending.codec)


def failed(error: BaseException, codec: Codec) -> RunOutcome:
    """Make the outcome of an error."""
    return RunOutcome(Status.FAILED, Failure.of(error, codec).to_json(), error)


def _completed(result: Any, ending: OutcomeContext) -> RunOutcome:
    stored = ending.codec.store_quickly(result, ending.returns)
    if stored is not None:
        return RunOutcome(_COMPLETED, stored[0])
    what = f"result of {ending.type} (run {ending.run_id!r})"
    try:
        payload, _ = ending.codec.store(result, ending.returns, what)
    except DecodeError as error:
        wrong = BadArguments(f"{error}; the workflow's result is not of the type that it declares")
        return failed(wrong, ending.codec)
    except PerdureError as error:
        return failed(error, ending.codec)
    return RunOutcome(_COMPLETED, payload)


def _reason(task: asyncio.Task[Any]) -> tuple[str, ...]:
    try:
        task.result()
    except asyncio.CancelledError as error:
        return tuple(str(argument) for argument in error.args)
    return ()


#: Failed undos that an outcome lists; the history has all of them.
_LISTED = 16


class UndoPhase:
    """Undoes what a run did. Its tasks are over or cancelled by then, so no cancellation can interrupt it."""

    def __init__(self, outcome: RunOutcome, undos: UndoLog, loop: RunLoop) -> None:
        self._outcome = outcome
        self._undos = undos
        self._loop = loop
        context = ContextVars()
        #: Task that undoes.
        self.task: RunTask[Any] = context.run(loop.create_task, self._undo(), context=context)

    @property
    def over(self) -> bool:
        """True if nothing is left to be undone."""
        return self.task.done()

    def outcome(self, codec: Codec) -> RunOutcome:
        """Outcome of the run, with the errors of failed undos."""
        self.task.result()
        outcome = replace(self._outcome, final=True)
        problems = list(self._undos.errors.items())[:_LISTED]
        if not problems:
            return outcome
        assert outcome.error is not None, "a run without an error is not undone"
        failures = {location: Failure.of(error, codec) for location, error in problems}
        failure = replace(Failure.of(outcome.error, codec), not_undone=failures, partial=outcome.partial)
        return replace(outcome, payload=failure.to_json())

    async def _undo(self) -> None:
        # A step under way is awaited: if it were cancelled, it would be unknown whether it has to be undone.
        await self._undos.settle()
        for task in tuple(self._loop.tasks):
            if task is not asyncio.current_task():
                task.cancel("the run has failed, and is being undone")
        await self._undos.settle_blocks()
        await self._undos.undo()


def describe_forgotten(label: str, function: Callable[..., Any] | None) -> str:
    """The label of an operation, with the file, line and code that asked for it if they can be told."""
    if function is None:
        return label
    try:
        found = _find(label, inspect.unwrap(function))
    except Exception:
        # The source may be missing, or be of another version.
        return label
    return label if found is None else f"{label} ({found})"


def _find(label: str, function: Callable[..., Any]) -> str | None:
    lines, first = inspect.getsourcelines(function)
    name = operation_name(label)
    matching = [one for one in call_sites("".join(lines)) if not one.awaited and name in one.names]
    # Statements that drop the operation come before assignments, whose operation may be awaited later.
    candidates = [one for one in matching if one.dropped] or matching
    if not candidates:
        return None
    line = candidates[0].line
    file = PurePath(inspect.getsourcefile(function) or "?").name
    return f"{file}:{first + line - 1}: `{lines[line - 1].strip()}`"
