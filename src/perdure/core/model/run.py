"""The values that travel between client, store, worker and replay.

Everything here is frozen and free of I/O. A row of the database becomes one of these at the edge of the store, and nothing
behind that edge ever sees a row. Times are integer microseconds since the epoch in UTC; payloads are JSON text.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from perdure.core.model.outputs import NewOutput, Renew, Trim

#: "Never", as a wake-up time or a deadline: the last microsecond of the year 9999. Times in the database are never NULL,
#: because `LEAST(NULL, now)` differs between databases.
FAR = 253_402_300_799_999_999

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


class Kind(StrEnum):
    """What a history record says happened."""

    STEP = "step"
    TIMER = "timer"
    MESSAGE = "message"
    CHILD = "child"
    CANCEL = "cancel"
    #: A scope reached a point from which it goes on: what came before in it may be trimmed. Its location is the scope's path.
    SCOPE = "scope"
    #: Which version of the code the run follows from here on.
    VERSION = "version"
    #: What came before was copied from another run.
    FORK = "fork"
    #: One attempt of a step failed and another will follow. It resolves nothing; it keeps the count and the error.
    ATTEMPT = "attempt"
    #: Somebody changed when a sleep ends; its payload is the new time.
    WAKE = "wake"
    #: Only in inboxes: what the worker that holds the run is told, and the workflow never sees.
    PAUSE = "pause"
    RESUME = "resume"
    EVICT = "evict"
    #: A step of the run may pass its gates.
    CALL = "call"


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

    def begins(self, now: int) -> tuple[str, str | None, int]:
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


class Record(Struct, frozen=True, kw_only=True, gc=False):
    """One line of a run's history: a completion, in the order in which it was applied."""

    seq: int
    kind: Kind
    #: Where in the workflow; for a message its name; empty for a cancellation.
    location: str
    #: JSON of the result, or of the `Failure` when `failed`.
    payload: str | None
    failed: bool = False
    #: The workflow's time when it was applied.
    at: int
    #: When the step's last attempt began; 0 where nothing ran.
    started_at: int = 0
    #: Short digest of a step's or child's encoded arguments. Of a message: the batch that it was taken in with, if any.
    digest: str = ""
    #: How many attempts the step has used so far.
    attempts: int = 0
    #: For an attempt that failed: when the next one is due.
    retry_at: int = 0
    #: The inbox entry that this record took in; 0 for none.
    inbox_seq: int = 0
    #: The run's own attempt (`Run.attempt`) that wrote it.
    run_attempt: int = 1


class NewMessage(Struct, frozen=True, kw_only=True, gc=False):
    """Something for the inbox of a run."""

    run_id: str
    #: MESSAGE, CHILD, CANCEL, or what only workers are told.
    kind: Kind = Kind.MESSAGE
    #: The message's name; for a child its location in the parent.
    name: str = ""
    payload: str | None = None
    failed: bool = False
    #: Unique within the run for ever: sending it twice is sending it once.
    key: str
    #: If given, the run is meant only if it is a child of that one; an id may belong to somebody else.
    only_child_of: str | None = None


class Message(Struct, frozen=True, kw_only=True, gc=False):
    """An entry of a run's inbox. `seq` rises in commit order within the run."""

    run_id: str
    seq: int
    kind: Kind
    name: str
    payload: str | None
    failed: bool
    key: str
    sent_at: int


class Lease(Struct, frozen=True, gc=False):
    """The right to write one run. Proved by every write, checked on the locked row."""

    run_id: str
    token: int
    nonce: str


class Park(Struct, frozen=True, gc=False):
    """Give the run back until `wake_at` or until something arrives. Refused if the inbox grew past `seen`."""

    wake_at: int
    reason: Reason
    seen: int


class Finish(Struct, frozen=True, gc=False):
    """The outcome: COMPLETED with a result, FAILED or CANCELLED with a `Failure`, as JSON."""

    status: Status
    payload: str | None
    #: Which limit of time was passed, for the audit trail.
    timeout: str = ""


class Again(Struct, frozen=True, gc=False):
    """The attempt at the whole run failed; begin the next one at `wake_at`."""

    wake_at: int
    error: str
    #: Which limit of time was passed, for the audit trail.
    timeout: str = ""


class Release(Struct, frozen=True, gc=False):
    """Hand the run back unfinished; any worker may take it at once. Raises the token."""

    #: The worker that the others are to leave it to for a moment.
    home: str | None = None


class Block(Struct, frozen=True, gc=False):
    """Set the run aside until a person or a deploy changes something."""

    reason: Reason
    error: str


Next = Park | Finish | Again | Renew | Release | Block


class Turn(Struct, frozen=True, kw_only=True, gc=False):
    """Everything one run makes durable at one moment; all of it lands, or nothing."""

    lease: Lease
    records: tuple[Record, ...] = ()
    #: The records took in the inbox up to this entry; 0 when they took in nothing.
    read: int = 0
    children: tuple[NewRun, ...] = ()
    sends: tuple[NewMessage, ...] = ()
    outputs: tuple[NewOutput, ...] = ()
    #: Topics of broadcasts that the run listens to from now on, and no longer.
    subscribes: tuple[str, ...] = ()
    unsubscribes: tuple[str, ...] = ()
    #: What the run no longer needs, deleted after the records are in.
    trim: Trim | None = None
    #: The run's next state; None: it goes on running.
    next: Next | None = None


class Verdict(StrEnum):
    """What became of a turn."""

    #: It is durable.
    APPLIED = "applied"
    #: It is durable except for its parking, because the inbox has something unread; the run goes on running.
    AWAKE = "awake"
    #: The lease was lost; nothing of it was written.
    LOST = "lost"
    #: The row was locked by somebody else; nothing was written, try again.
    BUSY = "busy"


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


class Claimed(Struct, frozen=True, kw_only=True):
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


class Loaded(Struct, frozen=True, kw_only=True):
    """What a worker needs to take a run up again."""

    run: Run
    #: In order of `seq`, those of earlier attempts at the run included.
    records: tuple[Record, ...]
    #: Unread inbox entries, in order of `seq`.
    inbox: tuple[Message, ...]


class Created(Struct, frozen=True):
    """The answer to one request to create a run."""

    run: Run
    #: False when the run was there before (same id, or same idempotency key).
    created: bool
    #: It is another run, which is there in place of the one that was wanted.
    attached: bool = False


class SendOutcome(StrEnum):
    """The answer to one send or cancel."""

    ACCEPTED = "accepted"
    #: A message of that key was accepted before; nothing was written now.
    DUPLICATE = "duplicate"
    FINISHED = "finished"
    UNKNOWN = "unknown"


class Event(Struct, frozen=True, kw_only=True):
    """A line of the audit trail, for people; never read by replay."""

    id: int
    run_id: str
    at: int
    kind: str
    #: The worker or client that caused it.
    actor: str
    #: JSON object.
    data: str
