"""Orders to runs (pause, resume, evict, wake), and pauses of types and queues."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from perdure.core.model.record import RecordKind


class RunOrder(Struct, frozen=True, kw_only=True):
    """An order to a run, apart from messages and cancellations."""

    run_id: str
    #: PAUSE, RESUME, EVICT or WAKE.
    kind: RecordKind
    #: Unique within the run for ever; repeating it changes nothing.
    key: str
    #: Reason, for people.
    reason: str = ""
    #: For WAKE: new end of the sleep.
    at: int = 0  # equivalent: constant: only WAKE reads it, and takes any time in the past as now


class OrderOutcome(StrEnum):
    """Answer to an order."""

    DONE = "done"
    #: It was so before; nothing was written.
    ALREADY = "already"
    #: The order does not apply to the run's status; nothing was written.
    REFUSED = "refused"
    FINISHED = "finished"
    UNKNOWN = "unknown"


def termination_message(run_id: str, reason: str) -> str:
    """Message of the error of a run that was terminated."""
    return f"run {run_id!r} was terminated{f': {reason}' if reason else ''}"


class PauseKind(StrEnum):
    """Kind of a pause that covers many runs."""

    TYPE = "type"
    QUEUE = "queue"


def trail_of(kind: PauseKind, name: str) -> str:
    """Id under which the audit trail has the pauses of a type or queue."""
    return f"{kind.value}:{name}"


class Pause(Struct, frozen=True, kw_only=True):
    """A pause of a type or queue: no worker claims its runs."""

    kind: PauseKind
    name: str
    reason: str = ""
    #: Actor and time of the pause.
    actor: str = ""
    paused_at: int = 0
