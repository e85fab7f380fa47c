"""Reports: a run and its steps, with attempts and errors; runs that new code does not fit; bulk actions."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from msgspec import Struct

from perdure.core.model.outputs import Interruption, Output
from perdure.core.model.record import Record
from perdure.core.model.run import Run, RunGroup
from perdure.core.model.waits import RunWaits
from perdure.core.model.worker_info import RunningStep


class FailedAttempt(Struct, frozen=True, kw_only=True):
    """A failed attempt at a step or at a run, with its error."""

    #: Time, in microseconds since the epoch.
    at: int
    #: Location of the step; empty for the run as a whole.
    location: str
    #: Number of the attempt.
    attempt: int
    #: Class name of the error, and its message.
    error: str
    message: str
    #: Time of the next attempt; 0: there is none.
    retry_at: int = 0


def original_records(records: Iterable[Record]) -> dict[int, Record]:
    """Records that a retry of the run has kept, by number, each with the original record of the earlier attempt.

    A kept record differs from its original only in number, time and attempt at the run.
    """
    first: dict[tuple[object, ...], Record] = {}
    kept: dict[int, Record] = {}
    for record in records:
        if not record.failed:
            before = first.setdefault(_contents(record), record)
            if before.run_attempt < record.run_attempt:
                kept[record.seq] = before
    return kept


def _contents(record: Record) -> tuple[object, ...]:
    took = record.at - record.started_at if record.started_at else None
    return record.kind, record.location, record.payload, record.digest, record.attempts, took


class StepReport(Struct, frozen=True, kw_only=True):
    """Report of a step, child or other operation in the history."""

    location: str
    kind: str
    #: `completed`, `failed` or `retrying`; `begun` if only the beginning of a step with `at_most_once` is recorded.
    status: str
    attempts: int
    #: Start and end of the last attempt, in microseconds since the epoch; 0 where it was not measured.
    started_at: int
    finished_at: int
    errors: tuple[FailedAttempt, ...]
    #: Known interruptions of its attempts. Interrupted attempts do not count towards the limit of its retries.
    interruptions: tuple[Interruption, ...] = ()

    @property
    def duration(self) -> float:
        """Duration of the last attempt, in seconds."""
        return (self.finished_at - self.started_at) / 1e6 if self.started_at and self.finished_at else 0.0

    @property
    def last_error(self) -> FailedAttempt | None:
        """The last error; None if there was none."""
        return self.errors[-1] if self.errors else None


class ChildLink(Struct, frozen=True, kw_only=True):
    """A child of a run, and the location that called it."""

    id: str
    parent_location: str | None
    created_at: int


class RunSnapshot(Struct, frozen=True, kw_only=True):
    """A run with its history and some of its outputs, as they were at one moment."""

    run: Run
    #: Names of what it waited for when it was last parked; None if it named nothing.
    waits: RunWaits | None
    #: Records past a number, in order, without long results of steps.
    records: tuple[Record, ...]
    #: Outputs of the kinds that were asked for, in the order of kind, name and position.
    outputs: tuple[Output, ...]
    #: The latest of its children, latest first.
    children: tuple[ChildLink, ...] = ()


class RunReport(Struct, frozen=True, kw_only=True):
    """Report of a run."""

    run: Run
    #: Number of attempts at the whole run, including the first.
    attempts: int
    #: Time of the last retry of the whole run, in microseconds since the epoch; 0: never.
    last_retry_at: int
    #: First start, and end; 0 if there is none.
    started_at: int
    finished_at: int
    #: Time of the last change that the run's row, history or audit trail tells of.
    updated_at: int
    steps: tuple[StepReport, ...]
    #: All errors of the steps and of the run, in order.
    errors: tuple[FailedAttempt, ...]
    #: All interruptions, in order.
    interruptions: tuple[Interruption, ...] = ()
    #: All that the run waits for, by name; None if it is not parked.
    waits: RunWaits | None = None
    #: Steps that its worker had under way for longer than a second at its last heartbeat.
    running: tuple[RunningStep, ...] = ()

    @property
    def duration(self) -> float:
        """Seconds from the first start to the end; 0 for an unfinished run."""
        return (self.finished_at - self.started_at) / 1e6 if self.finished_at and self.started_at else 0.0

    @property
    def last_error(self) -> FailedAttempt | None:
        """The last error; None if there was none."""
        return self.errors[-1] if self.errors else None


class DeployProblem(StrEnum):
    """Kind of mismatch between the code and a run."""

    #: The code does not make the calls that the history has.
    DIVERGED = "diverged"
    #: The code raises an error that says that it is broken, such as a `NameError`.
    BROKEN = "broken"
    #: The input, or a result in the history, does not fit the types of the code.
    UNDECODABLE = "undecodable"
    #: No workflow of the run's type is registered.
    UNSERVED = "unserved"
    #: The code calls a recorded operation with other arguments; the recorded result stays. A warning.
    ARGUMENTS = "arguments"


class DeployFinding(Struct, frozen=True, kw_only=True):
    """A run that the code does not fit."""

    run_id: str
    type: str
    problem: DeployProblem
    #: Operation in the history, and the code's operation in its place.
    expected: str
    found: str
    #: Most likely fix.
    fix: str

    @property
    def is_warning(self) -> bool:
        """True if the run can continue nevertheless."""
        return self.problem is DeployProblem.ARGUMENTS


class DeployReport(Struct, frozen=True, kw_only=True):
    """Result of a check."""

    #: Number of runs that were checked; `more`: there are others beyond the limit.
    checked: int
    more: bool
    findings: tuple[DeployFinding, ...]
    #: Number of runs that were checked, by type.
    by_type: dict[str, int] = {}
    #: Number of runs that were left out because they are pinned to another build.
    pinned: int = 0

    @property
    def ok(self) -> bool:
        """True if every checked run can continue with this code."""
        return all(finding.is_warning for finding in self.findings)


class BulkAction(StrEnum):
    """Action on many runs."""

    CANCEL = "cancel"
    TERMINATE = "terminate"
    RETRY = "retry"
    PAUSE = "pause"
    RESUME = "resume"
    DELETE = "delete"
    SEND = "send"
    UNPIN = "unpin"


class BulkReport(Struct, frozen=True, kw_only=True):
    """Numbers of runs that an action was done to, that needed none, and for which it failed.

    The first hundred of the latter are named with the reason.
    """

    action: str
    done: int = 0
    skipped: int = 0
    failed: int = 0
    #: By id, why there was nothing to do, and the error.
    skipped_runs: dict[str, str] = {}
    failed_runs: dict[str, str] = {}


class BulkPreview(Struct, frozen=True, kw_only=True):
    """Runs that an action would be done to: how many, and the first ten."""

    count: RunGroup
    first: tuple[Run, ...]
