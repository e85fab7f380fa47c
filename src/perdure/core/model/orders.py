"""What people tell runs and workers: to pause, to go on, to move, to wake up."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from perdure.core.model.record import RecordKind


class RunOrder(Struct, frozen=True, kw_only=True):
    """Something that a run is told, apart from messages and cancellations."""

    run_id: str
    #: PAUSE, RESUME, EVICT or WAKE.
    kind: RecordKind
    #: Unique within the run for ever: saying it twice is saying it once.
    key: str
    #: Why, for people.
    reason: str = ""
    #: Of WAKE: when the sleep ends.
    at: int = 0  # equivalent: constant: only WAKE reads it, and takes any time in the past as now


class OrderOutcome(StrEnum):
    """The answer to an order."""

    DONE = "done"
    #: It is so already; nothing was written.
    ALREADY = "already"
    #: The run is not in a state in which that means anything; nothing was written.
    REFUSED = "refused"
    FINISHED = "finished"
    UNKNOWN = "unknown"


class PauseKind(StrEnum):
    """What a pause is of, apart from single runs."""

    TYPE = "type"
    QUEUE = "queue"


class Pause(Struct, frozen=True, kw_only=True):
    """Runs of a type, or in a queue, are not taken by any worker until it is over."""

    kind: PauseKind
    name: str
    reason: str = ""
    #: Who paused it, and when.
    actor: str = ""
    paused_at: int = 0
