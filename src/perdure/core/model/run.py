"""Runs: what is stored of one, what creates one, and which ones a listing shows.

Everything in this package is frozen and free of I/O. A row of the database becomes one of these at the edge of the store, and nothing
behind that edge ever sees a row. Times are integer microseconds since the epoch in UTC; payloads are JSON text.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from perdure.core.time.duration import FAR

#: The queue and the priority of a run that names none. Lower priorities go first.
DEFAULT_QUEUE = "default"
DEFAULT_PRIORITY = 100


class Status(StrEnum):
    """Where a run stands."""

    PENDING = "pending"
    RUNNING = "running"
    WAITING = "waiting"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    BLOCKED = "blocked"

    @property
    def finished(self) -> bool:
        """Whether the run has its outcome."""
        return self in FINISHED


FINISHED = frozenset({Status.COMPLETED, Status.FAILED, Status.CANCELLED})


class Reason(StrEnum):
    """What a waiting run waits for, or why a blocked one is blocked."""

    TIMER = "timer"
    MESSAGE = "message"
    CHILD = "child"
    RETRY = "retry"
    PAUSED = "paused"
    #: For its turn.
    LIMIT = "limit"
    BREAKER = "breaker"
    DIVERGED = "diverged"
    POISON = "poison"
    UNDECODABLE = "undecodable"


class NewRun(Struct, frozen=True, kw_only=True, gc=False):
    """A run to be created. `input` is a JSON object (arguments by name) or array (by position)."""

    id: str
    type: str
    input: str = "{}"
    queue: str = DEFAULT_QUEUE
    priority: int = DEFAULT_PRIORITY
    #: Not before this time; 0 means now.
    wake_at: int = 0
    #: When it has to be finished; or, with `close_by`, when it has to be begun.
    deadline: int = FAR
    #: When it has to be finished if `deadline` is for its beginning; 0 if that is not so.
    close_by: int = 0
    #: How often it may be tried; 0: as its code says.
    max_attempts: int = 0
    #: JSON of what differs from what its code says.
    options: str = "{}"
    idempotency_key: str | None = None
    parent_id: str | None = None
    parent_location: str | None = None
    #: Of a child of a child: how many ancestors it may have, or it is not created and its parent told why. 0: any number.
    max_depth: int = 0
    #: It is not its turn yet: whoever makes it ready does so by other means than the clock.
    held_back: bool = False
    #: Made anew for every request to create; tells a repeated request from a second one.
    write_id: str

    def initial_state(self, now: int) -> tuple[str, str | None, int]:
        """Status, reason and wake-up time that it is created with."""
        if self.held_back:
            return Status.WAITING.value, Reason.LIMIT.value, FAR
        if self.wake_at > now:
            return Status.WAITING.value, Reason.TIMER.value, self.wake_at
        return Status.PENDING.value, None, now


class Run(Struct, frozen=True, kw_only=True, gc=False):
    """A run as the database has it."""

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
    #: Which try at the whole workflow this is, from 1. Raised by the workflow's own retry policy.
    attempt: int
    #: Raised when a finished run is opened again.
    generation: int
    token: int
    nonce: str
    worker: str | None
    #: While waiting: when it becomes ready by itself. While pending: since when it has been ready. While blocked: since when.
    wake_at: int
    deadline: int
    created_at: int
    #: When the current attempt was first claimed; 0 before that. Workflow time begins here.
    started_at: int
    #: When it got its outcome; 0 before that.
    finished_at: int
    #: Random, made at the first claim; what the workflow's own randomness grows from.
    seed: str
    #: Raised by every write from outside; parking compares it.
    inbox_seq: int
    #: Up to which inbox entry the history has taken them in.
    inbox_read: int
    #: Claims since the run last made progress.
    claims: int
    parent_id: str | None
    parent_location: str | None
    idempotency_key: str | None
    #: While `deadline` is for its beginning: when it has to be finished. 0 once it has begun.
    close_by: int = 0
    #: How often it may be tried, and JSON of what else differs from what its code says; 0 and `{}`: nothing.
    max_attempts: int = 0
    options: str = "{}"
    #: While a worker in another language has it: when others get it, unless that worker is heard of. 0 otherwise.
    lease_until: int = 0
    #: When it was deleted: it is hidden from listings until it is brought back, or deleted for good. 0: it was not.
    deleted_at: int = 0


class CreatedRun(Struct, frozen=True):
    """The answer to one request to create a run."""

    run: Run
    #: False when the run was there before (same id, or same idempotency key).
    created: bool
    #: It is another run, which is there in place of the one that was wanted.
    attached: bool = False


class RunFilter(Struct, frozen=True, kw_only=True):
    """Which runs to list, newest first. None means any; of deleted runs there are none, only these (True), or these too (None)."""

    status: tuple[Status, ...] | None = None
    type: str | None = None
    queue: str | None = None
    parent_id: str | None = None
    created_after: int | None = None
    created_before: int | None = None
    deleted: bool | None = False


class RunPage(Struct, frozen=True):
    """A page of a listing; hand `cursor` back for the next one, None when there is none."""

    runs: tuple[Run, ...]
    cursor: str | None


#: How the write id of a child begins that its parent does not take along when it ends.
ABANDONED = "abandon:"


class OnClose(StrEnum):
    """What becomes of a child that is still under way when its parent ends."""

    #: It is cancelled.
    CANCEL = "cancel"
    #: It goes on, and nobody is told how it ends.
    ABANDON = "abandon"
    #: The parent does not end before it; the parent's outcome stays what it is.
    WAIT = "wait"
