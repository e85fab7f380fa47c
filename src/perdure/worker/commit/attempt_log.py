"""Log of attempts: reports the ends of steps, activities and runs to the log and to hooks, after the commit.

Log records carry their fields as attributes (`extra`): run, type, step, attempt, worker, retries, duration, status,
error. Successes are DEBUG; retries, cancellations and steps that failed for good are INFO: the workflow may handle
them. A run or an activity that failed for good or is blocked is an ERROR with its traceback: it waits for a person. A
batch without failures is not examined unless its successes are logged, too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from msgspec import Struct

from perdure.core.codec.failure import Failure
from perdure.core.model.record import Record, RecordKind
from perdure.core.model.run import Run, Status
from perdure.core.model.turn import Block, Finish, RetryLater, Turn, TurnOutcome
from perdure.core.printed_text import log_with_trace

# Looking up an enum member through its class is slow; these are needed for every turn.
_STEP, _ATTEMPT, _COMPLETED, _CANCELLED = RecordKind.STEP, RecordKind.ATTEMPT, Status.COMPLETED, Status.CANCELLED

#: Scopes: a run whose code is a single function, and any other.
ACTIVITY = "activity"
RUN = "run"


class AttemptEnd(Struct, frozen=True, kw_only=True):
    """End of an attempt at a step, an activity or a run."""

    run: Run
    #: `step`, `activity` or `run`.
    scope: str
    location: str = ""
    attempt: int
    #: `success`, `retrying`, `failed`, `cancelled` or `blocked`.
    status: str
    #: In seconds.
    duration: float = 0.0
    at: int
    retry_at: int = 0
    #: The stored failure; None if the attempt succeeded.
    payload: str | None = None

    @property
    def failure(self) -> Failure:
        """The failure of the attempt."""
        return Failure.read(self.payload)


def has_failures(turn: Turn) -> bool:
    """True if a turn contains anything but successes."""
    after = turn.next
    if after is not None:
        kind = type(after)
        if (
            kind is RetryLater
            or kind is Block
            or (isinstance(after, Finish) and after.status is not _COMPLETED)  # equivalent: condition: success is DEBUG
        ):
            return True
    return any(record.failed for record in turn.records)


def attempt_ends(run: Run, scope: str, turn: Turn, now: int) -> Iterator[AttemptEnd]:
    """Ends of attempts that a turn contains; `now`: time of the commit."""
    for record in turn.records:
        if record.kind is _STEP or record.kind is _ATTEMPT:
            yield _of_record(run, "step" if scope == RUN else scope, record)
    attempt = turn.records[-1] if turn.records else None
    duration = (now - run.started_at) / 1e6 if run.started_at else 0.0
    match turn.next:
        case Finish(status=status, payload=payload):
            completed = status is _COMPLETED
            word = "success" if completed else "cancelled" if status is _CANCELLED else "failed"
            error = None if completed else payload
            yield AttemptEnd(
                run=run, scope=scope, attempt=run.attempt, status=word, duration=duration, at=now, payload=error
            )
        # The record says how an activity's attempt ended.
        case RetryLater(wake_at=wake_at, error=error) if scope == RUN or attempt is None:
            yield AttemptEnd(
                run=run, scope=scope, attempt=run.attempt, status="retrying", duration=duration, at=now,
                retry_at=wake_at, payload=error,
            )  # fmt: skip
        case Block(error=error):
            yield AttemptEnd(
                run=run, scope=scope, attempt=run.attempt, status="blocked", duration=duration, at=now, payload=error
            )
        case _:
            pass


def _of_record(run: Run, scope: str, record: Record) -> AttemptEnd:
    status = "retrying" if record.kind is _ATTEMPT else "failed" if record.failed else "success"
    return AttemptEnd(
        run=run,
        scope=scope,
        location=record.location if scope == "step" else "",
        attempt=record.attempts,
        status=status,
        duration=(record.at - record.started_at) / 1e6 if record.started_at else 0.0,
        at=record.at,
        retry_at=record.retry_at,
        payload=record.payload if record.failed else None,
    )


logger = logging.getLogger("perdure.execution")

_LANDED = frozenset({TurnOutcome.APPLIED, TurnOutcome.AWAKE})


class LoggedRun(Protocol):
    """A run whose turns are logged."""

    run: Run
    scope: str

    def run_fields(self) -> dict[str, object]:
        """Return fields of log records about the run: its type and, if it has one, the id of its trace."""


class AttemptLog:
    """Reports ends of attempts. `on_failures` is called with those that failed."""

    def __init__(
        self,
        on_failures: Callable[[Sequence[AttemptEnd]], object] | None = None,
        worker: Callable[[], str] = str,
    ) -> None:
        """`worker` returns the id of the worker's current life."""
        self._on_failures = on_failures
        self._worker = worker
        #: By run, the number of failures that turns not yet committed contain.
        self._failing: dict[str, int] = {}

    def expect(self, run_id: str) -> None:
        """Note that a turn of a run will contain a failure, so that batches are examined until it has come."""
        self._failing[run_id] = self._failing.get(run_id, 0) + 1

    def forget(self, run_id: str) -> None:
        """Expect nothing of a run any more."""
        self._failing.pop(run_id, None)

    @property
    def enabled(self) -> bool:
        """True if anything listens. Checked once per batch, before anything is looked up for it."""
        return bool(self._failing) or self._on_failures is not None or logger.isEnabledFor(logging.INFO)

    def log_batch(self, turns: Sequence[tuple[LoggedRun, Turn]], verdicts: Sequence[TurnOutcome], now: int) -> None:
        """Report the ends of attempts in a committed batch."""
        if not self.enabled:
            return
        everything = logger.isEnabledFor(logging.DEBUG)
        found = [
            (happening, subject)
            for (subject, turn), verdict in zip(turns, verdicts, strict=True)
            if (everything or has_failures(turn)) and verdict in _LANDED
            for happening in attempt_ends(subject.run, subject.scope, turn, now)
        ]
        for happening, subject in found:
            _log(happening, subject, self._worker())
            if happening.payload is not None and happening.run.id in self._failing:
                self._failing[happening.run.id] -= 1
                if self._failing[happening.run.id] <= 0:
                    del self._failing[happening.run.id]
        failed = [one for one, _ in found if one.payload is not None and one.status != "cancelled"]
        if self._on_failures is not None and failed:
            self._on_failures(failed)


def _level(one: AttemptEnd) -> int:
    if one.status == "success":
        return logging.DEBUG
    final = one.scope != "step" and one.status in ("failed", "blocked")
    return logging.ERROR if final else logging.INFO


def _log(one: AttemptEnd, subject: LoggedRun, worker: str) -> None:
    level = _level(one)
    if not logger.isEnabledFor(level):
        return
    failure = None if one.payload is None else one.failure
    error = None if failure is None else str(failure)
    place = f"step {one.location} of run" if one.scope == "step" else one.scope
    status = "is blocked" if one.status == "blocked" else one.status
    log_with_trace(
        logger,
        level,
        # The exception itself may be of another process.
        failure.format() if level == logging.ERROR and failure is not None else "",
        "%s %s (%s): %s, attempt %d, %.3f s%s",
        *(place, one.run.id, one.run.type, status, one.attempt, one.duration, "" if error is None else f": {error}"),
        extra={
            "run_id": one.run.id,
            **subject.run_fields(),
            "scope": one.scope,
            "step": one.location or None,
            "location": one.location or None,
            "attempt": one.attempt,
            "worker": worker,
            "retry_count": max(0, one.attempt - 1),
            "duration": one.duration,
            "status": one.status,
            "error": error,
            "retry_at": one.retry_at or None,
        },
    )
