"""Tells the log, and hooks, what became of turns that have landed.

Records carry their fields as attributes (`extra`): run, type, step, attempt, retries, duration, status, error. What succeeds is for
DEBUG, what is tried again or fails for INFO: an error of the user's code is no trouble of the worker's. Who is interested is asked
once a batch.
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

# Members of an enum are slow to find by their class; these are looked at for every turn.
_STEP, _ATTEMPT, _COMPLETED, _CANCELLED = RecordKind.STEP, RecordKind.ATTEMPT, Status.COMPLETED, Status.CANCELLED

#: The scope of a run whose code is a single function.
ACTIVITY = "activity"
RUN = "run"


class AttemptEnd(Struct, frozen=True, kw_only=True):
    """How an attempt ended."""

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
    #: A stored failure; None: it succeeded.
    payload: str | None = None

    @property
    def failure(self) -> Failure:
        """What went wrong."""
        return Failure.from_json(self.payload or "{}")


def has_failures(turn: Turn) -> bool:
    """Whether something in it did not simply succeed."""
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
    """Everything that a turn says; `now` is when it landed."""
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
        # What an activity's attempt came to is in its record.
        case RetryLater(wake_at=wake_at, error=error) if scope == RUN or attempt is None:
            yield AttemptEnd(
                run=run, scope=scope, attempt=run.attempt, status="retrying", duration=duration, at=now, retry_at=wake_at,
                payload=error,
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
    """Whose turn it was."""

    run: Run
    scope: str


class AttemptLog:
    """See the module. `tell` is called with everything that failed."""

    def __init__(self, tell: Callable[[Sequence[AttemptEnd]], object] | None = None) -> None:
        self._tell = tell

    @property
    def enabled(self) -> bool:
        """Whether anybody wants to know. Asked once a batch, before anything is looked up for it."""
        return self._tell is not None or logger.isEnabledFor(logging.INFO)

    def saw(self, turns: Sequence[tuple[LoggedRun, Turn]], verdicts: Sequence[TurnOutcome], now: int) -> None:
        """What became of a batch."""
        if not self.enabled:
            return
        everything = logger.isEnabledFor(logging.DEBUG)
        found = [
            happening
            for (subject, turn), verdict in zip(turns, verdicts, strict=True)
            if (everything or has_failures(turn)) and verdict in _LANDED
            for happening in attempt_ends(subject.run, subject.scope, turn, now)
        ]
        for happening in found:
            _log(happening)
        failed = [one for one in found if one.payload is not None and one.status != "cancelled"]
        if self._tell is not None and failed:
            self._tell(failed)


def _log(one: AttemptEnd) -> None:
    level = logging.DEBUG if one.status == "success" else logging.INFO
    if not logger.isEnabledFor(level):
        return
    error = None if one.payload is None else str(one.failure)
    place = f"step {one.location} of run" if one.scope == "step" else one.scope
    logger.log(
        level,
        "%s %s (%s): %s, attempt %d, %.3f s%s",
        place,
        one.run.id,
        one.run.type,
        one.status,
        one.attempt,
        one.duration,
        "" if error is None else f": {error}",
        extra={
            "run_id": one.run.id,
            "run_type": one.run.type,
            "scope": one.scope,
            "step": one.location or None,
            "attempt": one.attempt,
            "retry_count": max(0, one.attempt - 1),
            "duration": one.duration,
            "status": one.status,
            "error": error,
            "retry_at": one.retry_at or None,
        },
    )
