"""What a turn that has landed says about steps, activities and runs: who succeeded, who failed, who is tried again."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from perdure.core.failure import Failure
from perdure.core.model import Again, Block, Finish, Kind, Record, Run, Status, Turn

# Members of an enum are slow to find by their class; these are looked at for every turn.
_STEP, _ATTEMPT, _COMPLETED, _CANCELLED = Kind.STEP, Kind.ATTEMPT, Status.COMPLETED, Status.CANCELLED

#: The scope of a run whose code is a single function.
ACTIVITY = "activity"
RUN = "run"


class Happening(Struct, frozen=True, kw_only=True):
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


def is_remarkable(turn: Turn) -> bool:
    """Whether something in it did not simply succeed."""
    after = turn.next
    if after is not None:
        kind = type(after)
        if (
            kind is Again
            or kind is Block
            or (isinstance(after, Finish) and after.status is not _COMPLETED)  # equivalent: condition: success is DEBUG
        ):
            return True
    return any(record.failed for record in turn.records)


def happenings(run: Run, scope: str, turn: Turn, now: int) -> Iterator[Happening]:
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
            yield Happening(
                run=run, scope=scope, attempt=run.attempt, status=word, duration=duration, at=now, payload=error
            )
        # What an activity's attempt came to is in its record.
        case Again(wake_at=wake_at, error=error) if scope == RUN or attempt is None:
            yield Happening(
                run=run, scope=scope, attempt=run.attempt, status="retrying", duration=duration, at=now, retry_at=wake_at,
                payload=error,
            )  # fmt: skip
        case Block(error=error):
            yield Happening(
                run=run, scope=scope, attempt=run.attempt, status="blocked", duration=duration, at=now, payload=error
            )
        case _:
            pass


def _of_record(run: Run, scope: str, record: Record) -> Happening:
    status = "retrying" if record.kind is _ATTEMPT else "failed" if record.failed else "success"
    return Happening(
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
