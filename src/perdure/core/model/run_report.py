"""What a person asks of a run and of its steps: attempts, errors with their times, beginning, end, duration."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from perdure.core.model.outputs import Interruption
from perdure.core.model.record import Record
from perdure.core.model.run import Run


class FailedAttempt(Struct, frozen=True, kw_only=True):
    """One error of one attempt."""

    #: When, in microseconds since the epoch.
    at: int
    #: The step, or empty for the run as a whole.
    location: str
    #: Which attempt failed.
    attempt: int
    #: The name of its type, and its message.
    error: str
    message: str
    #: When the next attempt is due; 0: there is none.
    retry_at: int = 0


def original_records(records: Iterable[Record]) -> dict[int, Record]:
    """The records that a retry of the run has kept, by number, each with that of the attempt in which it was made.

    A kept record differs from the first one in its number, its time and the attempt at the run only.
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
    """A step, a child or another operation that has left something in the history."""

    location: str
    kind: str
    #: `completed`, `failed` or `retrying`.
    status: str
    attempts: int
    #: Of the last attempt, in microseconds since the epoch; 0 where it was not measured.
    started_at: int
    finished_at: int
    errors: tuple[FailedAttempt, ...]
    #: What interrupted attempts at it, as far as that is known. They count as attempts, but not towards the limit of its retries.
    interruptions: tuple[Interruption, ...] = ()

    @property
    def duration(self) -> float:
        """Seconds that the last attempt took."""
        return (self.finished_at - self.started_at) / 1e6 if self.started_at else 0.0

    @property
    def last_error(self) -> FailedAttempt | None:
        """The last of its errors."""
        return self.errors[-1] if self.errors else None


class RunReport(Struct, frozen=True, kw_only=True):
    """A run and what became of its parts."""

    run: Run
    #: Attempts at the whole run, the first one included.
    attempts: int
    #: When it was last tried again as a whole, in microseconds since the epoch; 0: never.
    last_retry_at: int
    #: The first of its beginnings, and its end; 0 if there is none.
    started_at: int
    finished_at: int
    steps: tuple[StepReport, ...]
    #: Everything that went wrong, in the steps and with the run, in order.
    errors: tuple[FailedAttempt, ...]
    #: Workers that did not finish what they had begun of it, in order.
    interruptions: tuple[Interruption, ...] = ()

    @property
    def duration(self) -> float:
        """Seconds from its first beginning to its end; 0 if it has not ended."""
        return (self.finished_at - self.started_at) / 1e6 if self.finished_at and self.started_at else 0.0

    @property
    def last_error(self) -> FailedAttempt | None:
        """The last of its errors."""
        return self.errors[-1] if self.errors else None
