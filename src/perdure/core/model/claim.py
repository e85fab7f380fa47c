"""Claims: a worker asks for runs that are ready, or for one run by its id."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from perdure.core.model.record import Message, Record
from perdure.core.model.run import DEFAULT_QUEUE, Reason, Run, Status
from perdure.core.model.turn import Lease
from perdure.core.time.duration import FAR

#: Claims without progress after which a run is a suspect: it may have killed the workers that had it.
SUSPECT_AFTER = 2


class ClaimRequest(Struct, frozen=True, kw_only=True):
    """Which runs a worker wants."""

    worker: str
    #: Random, new for every claim. A repeated request with the same nonce gets the same runs.
    nonce: str
    limit: int
    #: How many of `limit` are chosen by age alone, whatever their priority, so that nothing starves.
    by_age: int = 0
    types: tuple[str, ...]
    queues: tuple[str, ...] = (DEFAULT_QUEUE,)
    #: The worker holds nothing, so it may take suspects, and nothing else beside them.
    alone: bool = False
    #: Claims without progress after which a run is set aside.
    poison_after: int = 5
    #: For how long a run that has just become ready is left to the worker that last had it, in microseconds.
    affinity: int = 0


class ClaimedRun(Struct, frozen=True, gc=False):
    """A run and the lease on it."""

    run: Run
    #: The number of its last record; -1: nothing was ever recorded for it.
    last: int

    @property
    def fresh(self) -> bool:
        """Whether there is no history to load."""
        return self.last < 0

    @property
    def lease(self) -> Lease:
        """The right to write it."""
        return Lease(self.run.id, self.run.token, self.run.nonce)


class ClaimResult(Struct, frozen=True, kw_only=True):
    """What a claim got."""

    runs: tuple[ClaimedRun, ...]
    #: When the next run becomes ready by time alone (`FAR` if none will): no need to look before then for timers.
    next_wake: int
    #: Suspects were passed over because this worker holds something else.
    suspects: bool
    #: The database's time at the claim.
    now: int
    #: When a schedule is due next.
    next_fire: int = FAR
    #: Gates of whole types and queues, whose runs a claim leaves alone.
    limited: tuple[str, ...] = ()


class LoadedRun(Struct, frozen=True, kw_only=True):
    """What a worker needs to take a run up again."""

    run: Run
    #: In order of `seq`, those of earlier attempts at the run included.
    records: tuple[Record, ...]
    #: Unread inbox entries, in order of `seq`.
    inbox: tuple[Message, ...]


class ClaimByIdRequest(Struct, frozen=True, kw_only=True):
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


class ClaimRefusal(StrEnum):
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


class ClaimByIdResult(Struct, frozen=True, kw_only=True):
    """The answer: the run with a lease on it, or why not."""

    claimed: ClaimedRun | None = None
    refused: ClaimRefusal | None = None
    #: As it is, if it was not taken; None if there is no such run.
    run: Run | None = None
    #: The database's time.
    now: int
    #: The number of its last record when it was taken; -1 for none.
    progress: int = -1
    #: Gates of types and queues that were set at run time.
    limited: tuple[str, ...] = ()


class ExecutionState(StrEnum):
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


class ExecutionResult(Struct, frozen=True, kw_only=True):
    """What came of `engine.execute`."""

    run_id: str
    state: ExecutionState
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
