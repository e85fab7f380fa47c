"""Working on one run that somebody names, instead of on whatever is ready: what is asked of the store, and what comes of it."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from perdure.core.model.run import ClaimedRun, Reason, Run, Status


class Take(Struct, frozen=True, kw_only=True):
    """A request to take one run."""

    run_id: str
    worker: str
    #: Random, new for every request. A repeated one gets the same answer.
    nonce: str
    #: What the worker has code for, and what of that has to pass gates.
    types: tuple[str, ...]
    gated: frozenset[str] = frozenset()
    #: The worker holds nothing, so it may take a suspect.
    alone: bool = False
    #: Claims without progress after which a run is set aside.
    poison_after: int = 5


class Refusal(StrEnum):
    """Why a run was not taken."""

    UNKNOWN = "unknown"
    FINISHED = "finished"
    #: It waits: for a time, or for something to arrive.
    WAITING = "waiting"
    BLOCKED = "blocked"
    #: Somebody else has it.
    HELD = "held"
    #: Its type or its queue is paused.
    PAUSED = "paused"
    #: It may have killed those who had it, and is only given to who holds nothing else.
    SUSPECT = "suspect"
    #: The worker has no code for it.
    FOREIGN = "foreign"
    #: It has to pass gates, which is not done here; one that stood in a line is as ready as before.
    GATED = "gated"
    #: The worker has been declared dead.
    DEAD = "dead"


class Taken(Struct, frozen=True, kw_only=True):
    """The answer: the run with a lease on it, or why not."""

    claimed: ClaimedRun | None = None
    refused: Refusal | None = None
    #: As it is, if it was not taken; None if there is no such run.
    run: Run | None = None
    #: The database's time.
    now: int
    #: The number of its last record when it was taken; -1 for none.
    progress: int = -1
    #: Gates of types and queues that were set at run time.
    limited: tuple[str, ...] = ()


class Standing(StrEnum):
    """Where a run stands after somebody was asked to execute it."""

    FINISHED = "finished"
    #: For a time, a message or a child.
    WAITING = "waiting"
    #: Another worker has it.
    HELD = "held"
    #: Given back before it came to a wait or to its end: the time was up.
    READY = "ready"
    BLOCKED = "blocked"
    #: Its type or its queue is paused.
    PAUSED = "paused"


class Executed(Struct, frozen=True, kw_only=True):
    """What came of `engine.execute`."""

    run_id: str
    stands: Standing
    status: Status
    reason: Reason | None
    #: When to try again, in microseconds since the epoch; None: something has to happen first.
    again_at: int | None
    #: The same, in seconds from now.
    again_in: float | None
    #: Whether this call has worked on it.
    worked: bool
    #: Whether its history has grown by that, or it has come to a wait or its end.
    progressed: bool
    #: The run that waits for its outcome.
    parent_id: str | None
