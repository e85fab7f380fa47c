"""Runs: the stored row, the request that creates one, and the filter of a listing.

The classes of this package are frozen and free of I/O. The store turns rows of the database into these values; no other
layer sees a row. Times are integer microseconds since the epoch in UTC; payloads are JSON text.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from perdure.core.time.duration import FAR

#: Queue and priority of a run that names none. Lower priorities go first.
DEFAULT_QUEUE = "default"
DEFAULT_PRIORITY = 100


class Status(StrEnum):
    """Status of a run."""

    PENDING = "pending"
    RUNNING = "running"
    WAITING = "waiting"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    BLOCKED = "blocked"

    @property
    def finished(self) -> bool:
        """True if the run has its outcome."""
        return self in FINISHED


FINISHED = frozenset({Status.COMPLETED, Status.FAILED, Status.CANCELLED})


class Reason(StrEnum):
    """Reason why a run is waiting or blocked."""

    TIMER = "timer"
    MESSAGE = "message"
    CHILD = "child"
    RETRY = "retry"
    PAUSED = "paused"
    #: A limit, or another run of the same singleton.
    LIMIT = "limit"
    BREAKER = "breaker"
    DIVERGED = "diverged"
    POISON = "poison"
    UNDECODABLE = "undecodable"


class NewRun(Struct, frozen=True, kw_only=True, gc=False):
    """Request to create a run. `input` is a JSON object (arguments by name) or array (by position)."""

    id: str
    type: str
    input: str = "{}"
    queue: str = DEFAULT_QUEUE
    priority: int = DEFAULT_PRIORITY
    #: Earliest start; 0: now.
    wake_at: int = 0
    #: Time by which the run has to finish; with `close_by`, time by which it has to start.
    deadline: int = FAR
    #: Time by which the run has to finish, if `deadline` is that of its start; else 0.
    close_by: int = 0
    #: Number of attempts allowed; 0: as its code declares.
    max_attempts: int = 0
    #: JSON of the call's settings, which override those of the code.
    options: str = "{}"
    idempotency_key: str | None = None
    parent_id: str | None = None
    parent_location: str | None = None
    #: Number of ancestors that a child may have; a deeper child is not created, and its parent gets an error. 0: any
    #: number.
    max_depth: int = 0
    #: The run waits for another one of its singleton; it is not made ready by time.
    held_back: bool = False
    #: New for each request; tells a repeated request from a second one.
    write_id: str

    def initial_state(self, now: int) -> tuple[str, str | None, int]:
        """Status, reason and wake-up time of the new run."""
        if self.held_back:
            return Status.WAITING.value, Reason.LIMIT.value, FAR
        if self.wake_at > now:
            return Status.WAITING.value, Reason.TIMER.value, self.wake_at
        return Status.PENDING.value, None, now


class Run(Struct, frozen=True, kw_only=True, gc=False):
    """A run, as stored. The field names are the names of the columns."""

    id: str
    type: str
    queue: str
    priority: int
    status: Status
    reason: Reason | None
    input: str
    output: str | None
    #: A `Failure` as JSON: of a failed or blocked run, or of the last attempt of a run that is being retried.
    error: str | None
    #: Number of the attempt at the whole workflow, from 1; raised by the workflow's own retry policy.
    attempt: int
    #: Raised when the run is reopened, or continues as new.
    generation: int
    token: int
    nonce: str
    worker: str | None
    #: While waiting: time when it becomes ready. While pending or blocked: time since when it has been so.
    wake_at: int
    deadline: int
    created_at: int
    #: Time of the first claim of the current attempt; 0 before that. Workflow time begins here.
    started_at: int
    #: Time of the outcome; 0 before that.
    finished_at: int
    #: Random, made at the first claim; seed of the workflow's own random numbers.
    seed: str
    #: Raised by each write to the inbox; parking compares it.
    inbox_seq: int
    #: Last inbox entry that the history has taken in.
    inbox_read: int
    #: Number of claims since the run last made progress.
    claims: int
    parent_id: str | None
    parent_location: str | None
    idempotency_key: str | None
    #: While `deadline` is that of the start: time by which the run has to finish. 0 once it has started.
    close_by: int = 0
    #: Number of attempts allowed, and JSON of the call's other settings; 0 and `{}`: as its code declares.
    max_attempts: int = 0
    options: str = "{}"
    #: While a worker in another language holds the run: end of its lease. 0 otherwise.
    lease_until: int = 0
    #: Time of deletion: the run is hidden from listings until it is restored or pruned. 0: not deleted.
    deleted_at: int = 0


class CreatedRun(Struct, frozen=True):
    """Answer to one `NewRun`."""

    run: Run
    #: False if the run existed before, with the same id or idempotency key.
    created: bool
    #: The run is another one, of the same singleton or debounce key.
    attached: bool = False


class RunFilter(Struct, frozen=True, kw_only=True):
    """Filter of a listing of runs, newest first. None means any.

    `deleted`: only deleted runs (True), none of them (False), or both (None).
    """

    status: tuple[Status, ...] | None = None
    type: str | None = None
    queue: str | None = None
    parent_id: str | None = None
    created_after: int | None = None
    created_before: int | None = None
    deleted: bool | None = False


class RunPage(Struct, frozen=True):
    """A page of runs; pass `cursor` for the next page, None at the end."""

    runs: tuple[Run, ...]
    cursor: str | None


#: Prefix of the write id of a child that outlives its parent.
ABANDONED = "abandon:"


class OnClose(StrEnum):
    """Policy for a child that is unfinished when its parent ends."""

    #: The child is cancelled.
    CANCEL = "cancel"
    #: The child continues, and its outcome is reported to no run.
    ABANDON = "abandon"
    #: The parent ends only after the child; its outcome stays the same.
    WAIT = "wait"
