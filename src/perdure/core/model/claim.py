"""Claims: a worker asks for runs that are ready, or for one run by its id."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from perdure.core.model.record import Message, Record
from perdure.core.model.run import DEFAULT_QUEUE, Reason, Run, Status
from perdure.core.model.turn import Lease
from perdure.core.time.duration import NEVER

#: Claims without progress after which a run is a suspect: it may have killed the workers that held it.
SUSPECT_AFTER = 2


class ClaimRequest(Struct, frozen=True, kw_only=True):
    """Request of a worker for runs that are ready."""

    worker: str
    #: Random, new for each claim. Repeating a request with the same nonce gives the same runs.
    nonce: str
    limit: int
    #: Number of the runs, out of `limit`, that are chosen by age alone, so that low priorities do not starve.
    by_age: int = 0
    types: tuple[str, ...]
    queues: tuple[str, ...] = (DEFAULT_QUEUE,)
    #: The worker holds no run, so it may claim a suspect, and nothing besides.
    alone: bool = False
    #: Claims without progress after which a run is blocked as poison.
    poison_after: int = 5
    #: Microseconds for which a run that has become ready is left to the worker that held it last.
    affinity: int = 0
    #: Build of the worker's code, which a run that begins with this claim keeps.
    build: str = ""


class ClaimedRun(Struct, frozen=True, gc=False):
    """A claimed run and the lease on it."""

    run: Run
    #: Number of its last record; -1: there is none.
    last: int

    @property
    def fresh(self) -> bool:
        """True if there is no history to load."""
        return self.last < 0

    @property
    def lease(self) -> Lease:
        """The lease that the claim has given."""
        return Lease(self.run.id, self.run.token, self.run.nonce)


class ClaimResult(Struct, frozen=True, kw_only=True):
    """Answer to a `ClaimRequest`."""

    runs: tuple[ClaimedRun, ...]
    #: Time when the next run becomes ready by time alone; `NEVER` if none will.
    next_wake: int
    #: Suspects were skipped because this worker holds other runs.
    suspects: bool
    #: Time of the database at the claim.
    now: int
    #: Time when the next schedule is due.
    next_fire: int = NEVER
    #: Gates of whole types and queues; runs behind them need an admission.
    limited: tuple[str, ...] = ()


class LoadedRun(Struct, frozen=True, kw_only=True):
    """A run with the history and inbox that a worker needs to resume it."""

    run: Run
    #: In order of `seq`, including earlier attempts at the run.
    records: tuple[Record, ...]
    #: Unread inbox entries, in order of `seq`.
    inbox: tuple[Message, ...]


class ClaimByIdRequest(Struct, frozen=True, kw_only=True):
    """Request of a worker for one run by its id."""

    run_id: str
    worker: str
    #: Random, new for each request. Repeating a request gives the same answer.
    nonce: str
    #: Types that the worker has code for, and those of them that have limits.
    types: tuple[str, ...]
    gated: frozenset[str] = frozenset()
    #: The worker holds no run, so it may claim a suspect.
    alone: bool = False
    #: Claims without progress after which a run is blocked as poison.
    poison_after: int = 5
    #: Build of the worker's code.
    build: str = ""


class ClaimRefusal(StrEnum):
    """Reason why a run was not claimed by its id."""

    UNKNOWN = "unknown"
    FINISHED = "finished"
    #: It waits for a time or a message.
    WAITING = "waiting"
    BLOCKED = "blocked"
    #: Another worker holds it.
    HELD = "held"
    #: Its type or its queue is paused.
    PAUSED = "paused"
    #: It may have killed earlier workers, and is given only to a worker that holds no other run.
    SUSPECT = "suspect"
    #: The worker has no code for it.
    FOREIGN = "foreign"
    #: It has limits, and so needs an admission first; its place on a waitlist is unchanged.
    GATED = "gated"
    #: The worker was declared dead.
    DEAD = "dead"


class ClaimByIdResult(Struct, frozen=True, kw_only=True):
    """Answer to a `ClaimByIdRequest`: the run with a lease, or a refusal."""

    claimed: ClaimedRun | None = None
    refused: ClaimRefusal | None = None
    #: The run as it is, if it was refused; None if there is no such run.
    run: Run | None = None
    #: Time of the database.
    now: int
    #: Number of its last record at the claim; -1: none.
    progress: int = -1
    #: Gates of types and queues that were limited at run time.
    limited: tuple[str, ...] = ()


class ExecutionState(StrEnum):
    """State of a run after `engine.execute`."""

    FINISHED = "finished"
    #: It waits for a time, a message or a child.
    WAITING = "waiting"
    #: Another worker holds it.
    HELD = "held"
    #: Released when the timeout was over, before it came to a wait or to its end.
    READY = "ready"
    BLOCKED = "blocked"
    #: Its type or its queue is paused.
    PAUSED = "paused"


class ExecutionResult(Struct, frozen=True, kw_only=True):
    """Result of `engine.execute`."""

    run_id: str
    state: ExecutionState
    status: Status
    reason: Reason | None
    #: Time to execute it again, in microseconds since the epoch; None: after a message or an outcome.
    again_at: int | None
    #: The same time, in seconds from now.
    again_in: float | None
    #: This call has executed the run.
    worked: bool
    #: The run has new history, or has come to a wait or to its end.
    progressed: bool
    #: Id of the run that waits for its outcome.
    parent_id: str | None
