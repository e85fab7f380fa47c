"""Every error that Perdure raises.

    PerdureError
      UsageError (also ValueError)
        UnknownWorkflow   InvalidId   InvalidName   InvalidDuration   InvalidCursor   BadArguments (also TypeError)
        EncodeError   DecodeError   PayloadTooLarge
        RunExists   RunNotFound   RunFinished   EngineClosed
        InvalidSchedule   ScheduleExists   ScheduleNotFound
        SingletonBusy
      WorkflowError: the workflow's code is at fault
        NeverAwaited   DuplicateName   NotInWorkflow   LoopStuck   Diverged   ChildLimit
      Locked: somebody else holds a lock   LockLost: whoever held it does not any more
      Overloaded: there is enough to do already
      StreamFull: a step emits faster than the database takes it in
      StepFailed: a step's or child's error whose class is not known here
        StepTimeout (also TimeoutError)   ProcessDied
          ActivityTimeout
      RunFailed   RunCancelled: the outcome of a run, to whoever waits for its result
      Expired: a run past its deadline
        NotStarted
      Undeliverable: a run whose queue message failed again and again
      JoinError, RaceError (also ExceptionGroup): branches of a workflow that failed
      StoreError
        StoreUnavailable   StoreReadOnly   StoreFull   StoreCorrupt   SchemaMismatch
          StoreRefused

    Fatal, RetryAfter: raised by a step to steer its own retries
    Rollback: raised by a step or a workflow to undo what was done

Messages say what happened, to which run, and what to do. What a program may want to look at is on the instance.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perdure.core.failure import Failure


class PerdureError(Exception):
    """Whatever Perdure raises by itself."""


class UsageError(PerdureError, ValueError):
    """The caller asked for something that cannot be done; nothing was written."""


class UnknownWorkflow(UsageError):
    """No workflow of that type is registered here."""


class InvalidId(UsageError):
    """Not usable as an id."""


class InvalidName(UsageError):
    """Not usable as the name of a workflow, step, queue or message."""


class InvalidDuration(UsageError):
    """Not a duration."""


class InvalidCursor(UsageError):
    """Not a cursor that a listing returned."""


class BadArguments(UsageError, TypeError):
    """The arguments do not fit the workflow's parameters."""


class EncodeError(UsageError):
    """The value would not come back as it went in."""

    def __init__(self, message: str, *, path: str = "") -> None:
        super().__init__(message)
        #: Where in the value, such as `order.items[3].price`.
        self.path = path


class DecodeError(UsageError):
    """The stored value does not fit the type that is expected of it."""


class PayloadTooLarge(EncodeError):
    """The encoded value is over the limit."""


class RunExists(UsageError):
    """The id belongs to a run of another type or with another input."""


class RunNotFound(UsageError, LookupError):
    """No such run."""


class RunFinished(UsageError):
    """The run has its outcome and takes no more messages."""


class InvalidSchedule(UsageError):
    """A cron expression, time zone, interval or policy that is none."""


class ScheduleExists(UsageError):
    """There is another schedule of that id."""


class ScheduleNotFound(UsageError, LookupError):
    """There is no schedule of that id."""


class EngineClosed(UsageError):
    """The engine was closed, or belongs to the process that this one was forked from."""


class WorkflowError(PerdureError):
    """The workflow's own code breaks a rule of durable execution."""


class NeverAwaited(WorkflowError):
    """The workflow ended with operations that nothing had ever awaited."""


class DuplicateName(WorkflowError):
    """Two different functions were run as steps of one name."""


class NotInWorkflow(WorkflowError):
    """Workflow code tried to do I/O by itself, or called an engine."""


class LoopStuck(WorkflowError):
    """Workflow code kept its loop busy without ever waiting for anything durable."""


class Diverged(WorkflowError):
    """The code does not follow the recorded history; the message shows the difference."""

    def __init__(self, message: str, *, expected: str = "", found: str = "") -> None:
        super().__init__(message)
        #: What the history has, and what the code does instead.
        self.expected = expected
        self.found = found


class ChildLimit(WorkflowError):
    """A run would have too many children under way, or too many ancestors; the child was not started."""


class Locked(PerdureError):
    """Somebody else holds the lock."""

    def __init__(
        self, message: str, *, name: str = "", owner: str = "", until: datetime.datetime | None = None
    ) -> None:
        super().__init__(message)
        self.name = name
        #: Who holds it, and until when at the least.
        self.owner = owner
        self.until = until


class LockLost(PerdureError):
    """The lock is not held any more: its time ran out, or somebody took it."""

    def __init__(self, message: str, *, name: str = "") -> None:
        super().__init__(message)
        self.name = name


class SingletonBusy(UsageError):
    """Of what may go on only once at a time, another run is not over yet."""

    def __init__(self, message: str, *, run_id: str = "") -> None:
        super().__init__(message)
        #: The run that is in the way.
        self.run_id = run_id


class Overloaded(PerdureError):
    """A queue, or a type of runs, has as much to do as it is meant to; nothing was started."""

    def __init__(self, message: str, *, depth: int = 0, high: int = 0) -> None:
        super().__init__(message)
        #: How many runs wait, as far as they were counted, and how many may.
        self.depth = depth
        self.high = high


class StreamFull(PerdureError):
    """A step emits faster than the database takes it in, and cannot wait."""


class StepFailed(PerdureError):
    """A step or child failed with an error whose class is not known here."""

    def __init__(self, message: str, *, failure: Failure | None = None) -> None:
        super().__init__(message)
        #: The original: its type name, message, cause and traceback.
        self.failure = failure


class StepTimeout(StepFailed, TimeoutError):
    """A step took longer than its timeout."""


class ProcessDied(StepFailed):
    """The process that a step ran in ended before the step did."""


class RunFailed(PerdureError):
    """The run failed. Its error, where its class is known here, is the `__cause__`."""

    def __init__(self, message: str, *, run_id: str = "", failure: Failure | None = None) -> None:
        super().__init__(message)
        self.run_id = run_id
        self.failure = failure


class RunCancelled(PerdureError):
    """The run was cancelled."""

    def __init__(self, message: str, *, run_id: str = "") -> None:
        super().__init__(message)
        self.run_id = run_id


class Expired(PerdureError):
    """The run was not finished by its deadline."""


class NotStarted(Expired):
    """No worker took the run in time."""


class Undeliverable(PerdureError):
    """The queue message that asked for the run to be worked on failed again and again."""


class ActivityTimeout(StepTimeout):
    """An attempt at an activity took too long, or was not heard of for too long."""

    def __init__(self, message: str, *, kind: str = "", failure: Failure | None = None) -> None:
        super().__init__(message, failure=failure)
        #: `start_to_close` or `heartbeat`.
        self.kind = kind


class BreakerOpen(PerdureError):
    """What was called depends on something that is failing, and is left alone until a breaker closes."""

    def __init__(self, message: str, *, name: str = "", until: int = 0) -> None:
        super().__init__(message)
        self.name = name
        #: When the next call may be let pass, in microseconds since the epoch; 0: when somebody says so.
        self.until = until


class BranchesFailed(ExceptionGroup[Exception], PerdureError):
    """Branches of a workflow failed; a group of their errors."""

    #: The error of each branch that failed, by its name.
    errors: Mapping[str, Exception] = {}

    @classmethod
    def of(cls, what: str, errors: Mapping[str, Exception], count: int) -> Any:
        """The error for `what`, some or all of whose `count` branches failed."""
        listed = "; ".join(f"{name}: {type(error).__name__}: {error}" for name, error in errors.items())
        made = cls(f"{len(errors)} of {count} branches of {what} failed: {listed}", list(errors.values()))
        made.errors = dict(errors)
        return made


class JoinError(BranchesFailed):
    """Not all branches of a join succeeded; `results` has what the others gave."""

    results: Mapping[str, Any] = {}


class RaceError(BranchesFailed):
    """Every branch of a race failed."""


class StoreError(PerdureError):
    """The database."""


class StoreUnavailable(StoreError):
    """The database cannot be reached, or stayed busy for too long."""


class StoreRefused(StoreUnavailable):
    """The server does not let this user in, or has no such database. A worker that starts does not wait for a change of that."""


class StoreReadOnly(StoreError):
    """The database does not accept writes."""


class StoreFull(StoreError):
    """The database has no room or its disk fails."""


class StoreCorrupt(StoreError):
    """The database's content is not what Perdure wrote."""


class SchemaMismatch(StoreError):
    """The tables are missing, newer than this version of Perdure, or were changed by hand."""


class Fatal(Exception):
    """Raise it in a step to say that trying again is of no use."""


class Rollback(Fatal):
    """Raise it in a workflow or a step to give up and undo what was done; nothing is tried again."""


class RetryAfter(Exception):
    """Raise it in a step to try again after `delay`, without using up an attempt."""

    def __init__(self, delay: object, message: str = "") -> None:
        super().__init__(delay, message)
        self.delay = delay
        self.message = message

    def __str__(self) -> str:
        return self.message or f"retry after {self.delay}"


class Evicted(BaseException):
    """Thrown once through a run's tasks to end them here. Not an outcome: the run goes on elsewhere, or later."""
