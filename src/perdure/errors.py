"""Every error that Perdure raises.

    PerdureError
      UsageError (also ValueError): the caller's request cannot be carried out
        UnknownWorkflow   InvalidId   InvalidName   InvalidDuration   InvalidCursor   BadArguments (also TypeError)
        EncodeError   DecodeError   PayloadTooLarge
        AttemptNotFound   AttemptOver   QuestionRefused
        RunExists   RunNotFound   RunFinished   SingletonBusy   EngineClosed   AccessRefused
        InvalidSchedule   ScheduleExists   ScheduleNotFound   TokenExists   TokenNotFound   WorkerNotFound
      WorkflowError: the workflow's code breaks a rule of durable execution
        NeverAwaited   DuplicateName   NotInWorkflow   LoopStuck   Diverged   ChildLimit
      RunFailed   RunCancelled: the outcome of a run, raised where its result is awaited
        RunTerminated (also RunFailed)
      Expired: the run passed its deadline
        NotStarted
      Undeliverable: the queue message of the run failed repeatedly
      InvalidSignature: a queue message is not signed, or not by a known key, or too long ago
      StepFailed: an error of a step or child whose class is not known here
        StepTimeout (also TimeoutError)   ProcessDied
          ActivityTimeout
      BreakerOpen: a circuit breaker refuses calls
      JoinError, RaceError (also ExceptionGroup): branches of a workflow failed
      Locked   LockLost: a named lock is held by another owner, or was lost
      Overloaded: a queue or type has reached its watermark
      StreamFull: a step emits faster than the database stores
      StoreError: the database
        StoreUnavailable   StoreReadOnly   StoreFull   StoreCorrupt   SchemaMismatch
          StoreRefused       StoreDenied

    Fatal, RetryAfter: raised by a step to control its own retries
    Rollback: raised by a step or workflow to undo completed work

Messages say what happened, to which run, and what to do. Details for programs are attributes of the instance.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perdure.core.codec.failure import Failure


class PerdureError(Exception):
    """Base class of the errors that Perdure raises."""


# Errors of the caller


class UsageError(PerdureError, ValueError):
    """The caller's request cannot be carried out; nothing was written."""


class UnknownWorkflow(UsageError):
    """No workflow or activity of that type is registered here."""


class InvalidId(UsageError):
    """The value cannot be an id."""


class InvalidName(UsageError):
    """The value cannot be the name of a workflow, step, queue or message."""


class InvalidDuration(UsageError):
    """The value is not a duration or a point in time."""


class InvalidCursor(UsageError):
    """The value is not a cursor of a listing."""


class BadArguments(UsageError, TypeError):
    """The arguments do not fit the parameters."""


class EncodeError(UsageError):
    """The value cannot be stored as JSON without loss."""

    def __init__(self, message: str, *, path: str = "") -> None:
        super().__init__(message)
        #: Path of the part at fault, such as `order.items[3].price`.
        self.path = path


class DecodeError(UsageError):
    """The stored value does not fit the expected type."""


class PayloadTooLarge(EncodeError):
    """The encoded value exceeds the size limit."""


class RunExists(UsageError):
    """The id belongs to a run of another type or with another input."""


class RunNotFound(UsageError, LookupError):
    """There is no run of that id."""


class RunFinished(UsageError):
    """The run has finished and accepts no more messages."""


class AttemptNotFound(UsageError, LookupError):
    """The token belongs to no attempt at an activity of this database."""


class QuestionRefused(UsageError):
    """The workflow's validator refused the question; the error that it raised is the cause."""


class AttemptOver(UsageError):
    """The token belongs to an attempt at an activity that is over; nothing was written."""

    def __init__(self, message: str, *, run_id: str = "") -> None:
        super().__init__(message)
        #: Id of the activity's run.
        self.run_id = run_id


class SingletonBusy(UsageError):
    """Another run of the same singleton key has not finished."""

    def __init__(self, message: str, *, run_id: str = "") -> None:
        super().__init__(message)
        #: Id of that run.
        self.run_id = run_id


class AccessRefused(UsageError):
    """The server does not know the token, or the role of the token does not allow the request."""


class EngineClosed(UsageError):
    """The engine was closed, or belongs to the parent of this forked process."""


class InvalidSchedule(UsageError):
    """The value is not a cron expression, time zone, interval or schedule policy."""


class ScheduleExists(UsageError):
    """Another schedule has that id."""


class ScheduleNotFound(UsageError, LookupError):
    """There is no schedule of that id."""


class TokenExists(UsageError):
    """A valid token has that name."""


class WorkerNotFound(UsageError, LookupError):
    """No worker of that id is known."""


class TokenNotFound(UsageError, LookupError):
    """There is no token of that name."""


# Errors in workflow code


class WorkflowError(PerdureError):
    """The workflow's code breaks a rule of durable execution."""


class NeverAwaited(WorkflowError):
    """The workflow ended with operations that were never awaited."""


class DuplicateName(WorkflowError):
    """Two different functions ran as steps of the same name."""


class NotInWorkflow(WorkflowError):
    """Workflow code did I/O outside of a step, or called an engine; in strict tests also: read a clock, or the like."""


class LoopStuck(WorkflowError):
    """Workflow code kept its event loop busy without waiting for anything durable."""


class Diverged(WorkflowError):
    """The code does not follow the recorded history; the message shows the difference."""

    def __init__(self, message: str, *, expected: str = "", found: str = "") -> None:
        super().__init__(message)
        #: Operation in the history, and the code's operation in its place.
        self.expected = expected
        self.found = found


class ChildLimit(WorkflowError):
    """The run has too many unfinished children or too many ancestors; the child was not started."""


# Outcomes of runs, steps and branches


class RunFailed(PerdureError):
    """The run failed. The original error is the `__cause__` if its class is known here."""

    def __init__(self, message: str, *, run_id: str = "", failure: Failure | None = None) -> None:
        super().__init__(message)
        self.run_id = run_id
        self.failure = failure


class RunTerminated(RunFailed):
    """The run was ended by order, without its code. Its steps were undone only if the order said so."""


class RunCancelled(PerdureError):
    """The run was cancelled.

    `partial` is the value that its code returned after the cancellation; None if it returned none. If its code raised
    another error then, that error is the `__cause__`.
    """

    # A class attribute: an error without a partial result is stored without one.
    partial: Any = None

    def __init__(self, message: str, *, run_id: str = "") -> None:
        super().__init__(message)
        self.run_id = run_id


class Expired(PerdureError):
    """The run did not finish by its deadline."""


class NotStarted(Expired):
    """No worker claimed the run in time."""


class Undeliverable(PerdureError):
    """A queue message failed repeatedly, or the receiver of an event did not accept it."""


class InvalidSignature(PerdureError):
    """A queue message carries no valid signature."""


class StepFailed(PerdureError):
    """A step or child failed with an error whose class is not known here."""

    def __init__(self, message: str, *, failure: Failure | None = None) -> None:
        super().__init__(message)
        #: The original error: type name, message, cause and traceback.
        self.failure = failure


class StepInterrupted(StepFailed):
    """A step with `at_most_once` began, and its worker was lost before it ended.

    Whether the step had its effect is unknown. It is not executed again; the workflow decides what follows. `location`
    is the location of the step.
    """

    def __init__(self, message: str, *, location: str = "", failure: Failure | None = None) -> None:
        super().__init__(message, failure=failure)
        self.location = location


class StepTimeout(StepFailed, TimeoutError):
    """An attempt at a step exceeded its timeout."""


class ActivityTimeout(StepTimeout):
    """An attempt at an activity exceeded its timeout, or sent no heartbeat in time."""

    def __init__(self, message: str, *, kind: str = "", failure: Failure | None = None) -> None:
        super().__init__(message, failure=failure)
        #: `start_to_close` or `heartbeat`.
        self.kind = kind


class ProcessDied(StepFailed):
    """The process of a step ended before the step did."""


class BreakerOpen(PerdureError):
    """A circuit breaker is open, so the call was not made."""

    def __init__(self, message: str, *, name: str = "", until: int = 0) -> None:
        super().__init__(message)
        self.name = name
        #: Time of the next probe, in microseconds since the epoch; 0: the breaker was opened by hand and stays open.
        self.until = until


class BranchesFailed(ExceptionGroup[Exception], PerdureError):
    """Branches of a workflow failed; a group of their errors."""

    #: Error of each failed branch, by name.
    errors: Mapping[str, Exception] = {}

    @classmethod
    def of(cls, what: str, errors: Mapping[str, Exception], count: int) -> Any:
        """Make the error of a join or race, called `what`, with `count` branches."""
        listed = "; ".join(f"{name}: {type(error).__name__}: {error}" for name, error in errors.items())
        made = cls(f"{len(errors)} of {count} branches of {what} failed: {listed}", list(errors.values()))
        made.errors = dict(errors)
        return made


class JoinError(BranchesFailed):
    """At least one branch of a join failed; `results` has the values of the others."""

    results: Mapping[str, Any] = {}


class RaceError(BranchesFailed):
    """Every branch of a race failed."""


# Locks and load


class Locked(PerdureError):
    """Another owner holds the lock."""

    def __init__(
        self, message: str, *, name: str = "", owner: str = "", until: datetime.datetime | None = None
    ) -> None:
        super().__init__(message)
        self.name = name
        #: Current owner, and the earliest time when its lock expires.
        self.owner = owner
        self.until = until


class LockLost(PerdureError):
    """The lock expired or was taken over."""

    def __init__(self, message: str, *, name: str = "") -> None:
        super().__init__(message)
        self.name = name


class Overloaded(PerdureError):
    """A queue or type has reached its watermark; nothing was started."""

    def __init__(self, message: str, *, depth: int = 0, high: int = 0) -> None:
        super().__init__(message)
        #: Number of waiting runs, as far as they were counted, and the watermark.
        self.depth = depth
        self.high = high


class StreamFull(PerdureError):
    """An async step emits faster than the database stores, and cannot wait."""


# The database


class StoreError(PerdureError):
    """Base class of errors of the database."""


class StoreUnavailable(StoreError):
    """The database cannot be reached, or stayed busy for too long."""


class StoreRefused(StoreUnavailable):
    """The server refuses the user, or has no such database. A starting worker does not wait for that to change."""


class StoreReadOnly(StoreError):
    """The database does not accept writes."""


class StoreDenied(StoreReadOnly):
    """The database denies its user a right that Perdure needs, such as reading or writing one table."""


class StoreFull(StoreError):
    """The database has no room, or its disk fails."""


class StoreCorrupt(StoreError):
    """The database holds data that Perdure did not write."""


class SchemaMismatch(StoreError):
    """The tables are missing, were changed by hand, or belong to a newer version of Perdure."""


# Raised by users' code


class Fatal(Exception):
    """Raise it in a step to fail without another attempt."""


class Rollback(Fatal):
    """Raise it in a workflow or step to give up without another attempt and undo completed work."""


class RetryAfter(Exception):
    """Raise it in a step to try again after `delay`, without using up an attempt."""

    def __init__(self, delay: object, message: str = "") -> None:
        super().__init__(delay, message)
        self.delay = delay
        self.message = message

    def __str__(self) -> str:
        return self.message or f"retry after {self.delay}"


class Evicted(BaseException):
    """Thrown through a run's tasks to end them in this process. The run continues elsewhere, or later."""
