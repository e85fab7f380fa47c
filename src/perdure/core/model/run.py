"""Runs: the stored row, the requests that create, reopen and fork one, and the filter of a listing.

The classes of this package are frozen and free of I/O. The store turns rows of the database into these values; no other
layer sees a row. Times are integer microseconds since the epoch in UTC; payloads are JSON text.

A reopened run is the same run. It keeps its random numbers, so that the arguments of recorded operations are the same,
and it keeps its root generation, from which the ids of its children and the keys of its messages follow. The seed is
stored as `source@generation`, which names the generation that uses the source.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from msgspec import Struct

from perdure.core.model.attributes import Attribute, Condition
from perdure.core.model.headers import Headers, readable_headers
from perdure.core.model.record import Record
from perdure.core.pinning import pinned_build
from perdure.core.time.duration import NEVER

#: Queue and priority of a run that names none. Lower priorities go first.
DEFAULT_QUEUE = "default"
DEFAULT_PRIORITY = 100
#: Type of the runs that are sticky events.
STICKY_TYPE = "perdure.sticky"
#: Type of runs that are bulk actions.
BULK_TYPE = "perdure.bulk.v1"
#: Options of a run that has none, as most runs: there is nothing to decode.
NO_OPTIONS = "{}"


class Status(StrEnum):
    """Status of a run."""

    PENDING = "pending"
    RUNNING = "running"
    WAITING = "waiting"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    BLOCKED = "blocked"

    def __init__(self, value: str) -> None:
        #: True if the run has its outcome.
        self.finished = value in ("completed", "failed", "cancelled")


FINISHED = frozenset(status for status in Status if status.finished)
UNFINISHED = tuple(status for status in Status if not status.finished)
#: Number of runs up to which a count is exact.
MOST_COUNTED = 10_000


class Reason(StrEnum):
    """Reason why a run is waiting or blocked."""

    TIMER = "timer"
    MESSAGE = "message"
    CHILD = "child"
    RETRY = "retry"
    #: The function of an activity has returned `Pending`; its end is reported from outside.
    COMPLETION = "completion"
    PAUSED = "paused"
    #: A limit, or another run of the same singleton.
    LIMIT = "limit"
    BREAKER = "breaker"
    DIVERGED = "diverged"
    POISON = "poison"
    UNDECODABLE = "undecodable"
    #: The workflow's code raised an error that says that it is broken, such as a `NameError`.
    BROKEN = "broken"


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
    deadline: int = NEVER
    #: Time by which the run has to finish, if `deadline` is that of its start; else 0.
    close_by: int = 0
    #: Number of attempts allowed; 0: as its code declares.
    max_attempts: int = 0
    #: JSON of the call's settings, which override those of the code.
    options: str = NO_OPTIONS
    idempotency_key: str | None = None
    parent_id: str | None = None
    parent_location: str | None = None
    #: Number of ancestors that a child may have; a deeper child is not created, and its parent gets an error. 0: any
    #: number.
    max_depth: int = 0
    attributes: tuple[Attribute, ...] = ()
    #: The run waits for another one of its singleton; it is not made ready by time.
    held_back: bool = False
    #: New for each request; tells a repeated request from a second one.
    write_id: str

    def initial_state(self, now: int) -> tuple[str, str | None, int]:
        """Status, reason and wake-up time of the new run."""
        if self.held_back:
            return Status.WAITING.value, Reason.LIMIT.value, NEVER
        if self.wake_at > now:
            # A sticky event is a run that never begins, and that ends from outside.
            reason = Reason.COMPLETION if self.type == STICKY_TYPE else Reason.TIMER
            return Status.WAITING.value, reason.value, self.wake_at
        return Status.PENDING.value, None, now


class Run(Struct, frozen=True, gc=False):
    """A run, as stored. The field names are the names of the columns, but for `attributes`, which comes last."""

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
    options: str = NO_OPTIONS
    #: While a worker in another language holds the run: end of its lease. 0 otherwise.
    lease_until: int = 0
    #: Time of deletion: the run is hidden from listings until it is restored or pruned. 0: not deleted.
    deleted_at: int = 0
    #: Build of the worker that began the run, of a run that a handle or a listing has read; empty: unknown.
    build: str = ""
    #: Attributes by name, of a run that a handle or a listing has read; None: not read.
    attributes: dict[str, Any] | None = None

    @property
    def pinned_to(self) -> str | None:
        """Build whose workers alone continue the run; None: it is not pinned."""
        return pinned_build(self.queue) or None

    @property
    def last_retry_at(self) -> int:
        """Time when the latest retry began; 0 if there was none, or it waits to begin."""
        return self.started_at if self.attempt > 1 else 0

    @property
    def headers(self) -> Headers:
        """Headers that travel with the run; none if they cannot be read."""
        return readable_headers(self.options)


class CreatedRun(Struct, frozen=True):
    """Answer to one `NewRun`."""

    run: Run
    #: False if the run existed before, with the same id or idempotency key.
    created: bool
    #: The run is another one, of the same singleton or debounce key.
    attached: bool = False


class RunFilter(Struct, frozen=True, kw_only=True):
    """Filter of a listing of runs, newest first unless `oldest`. None means any.

    `deleted`: only deleted runs (True), none of them (False), or both (None).
    """

    status: tuple[Status, ...] | None = None
    type: str | None = None
    queue: str | None = None
    parent_id: str | None = None
    created_after: int | None = None
    created_before: int | None = None
    deleted: bool | None = False
    #: Oldest first.
    oldest: bool = False
    id_prefix: str | None = None
    #: Id of the schedule that started them.
    schedule: str | None = None
    #: Only runs without a parent.
    roots: bool = False
    #: Part of the message or the class of their error; without `status`, of runs that failed, were cancelled or are
    #: blocked.
    error: str | None = None
    #: Build that began them.
    build: str | None = None
    attributes: tuple[Condition, ...] = ()
    #: Only runs that are ready and that no live worker takes.
    unserved: bool = False


class CountBy(Struct, frozen=True):
    """Groups of a count: a column (`status`, `type`, `queue` or `build`), an attribute, or none."""

    column: str = ""
    attribute: str = ""

    @property
    def is_grouped(self) -> bool:
        """True if there are groups."""
        return bool(self.column or self.attribute)


class RunGroup(Struct, frozen=True):
    """Number of runs in one group of a count; `value` is what they have in common."""

    value: Any
    count: int
    #: False: there are at least as many.
    exact: bool = True

    def __str__(self) -> str:
        return f"{self.count:,}" if self.exact else f"{self.count:,}+"


class RunTimes(Struct, frozen=True):
    """Type, status and times of a run, for rates and percentiles."""

    type: str
    status: Status
    created_at: int
    started_at: int
    finished_at: int
    deleted_at: int


class QueueBacklog(Struct, frozen=True):
    """Number of runs of a queue that wait for a worker or a limit, and the time since which the oldest is ready."""

    waiting: int
    #: 0: no run is ready.
    oldest: int


class RunPage(Struct, frozen=True):
    """A page of runs; pass `cursor` for the next page, None at the end.

    `previous` is the cursor to the page before, in the same order; None for the first page.
    """

    runs: tuple[Run, ...]
    cursor: str | None
    previous: str | None = None


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


class RetryRequest(Struct, frozen=True, kw_only=True):
    """Request to let a run go again, with changes; None leaves a value as it is."""

    run_id: str
    #: Token that the run was read with; identifies a repeated request.
    token: int
    #: True for an activity, which begins anew; None: unknown, its history decides.
    is_activity: bool | None = None
    input: str | None = None
    options: str | None = None
    max_attempts: int | None = None
    deadline: int | None = None
    #: Like `Run.close_by`; used with `deadline`.
    close_by: int = 0
    queue: str | None = None
    priority: int | None = None
    #: For the audit trail.
    reason: str = ""

    @property
    def changes(self) -> bool:
        """True if the run is to be changed."""
        return self.deadline is not None or self.changes_more

    @property
    def changes_more(self) -> bool:
        """True if more than the deadline of the run is to be changed."""
        values = (self.input, self.options, self.max_attempts, self.queue, self.priority)
        return any(value is not None for value in values)


class RetryCause(StrEnum):
    """State from which a run goes again; it decides what follows."""

    #: Failed or cancelled: it goes on as its next generation.
    ENDED = "ended"
    #: Blocked: it is claimed again where it was.
    BLOCKED = "blocked"
    #: Waiting or pending after a failed attempt: it gets all attempts anew, at once.
    FAILING = "failing"


class RetryOutcome(StrEnum):
    """Answer to a `RetryRequest`."""

    #: The run is open, by this request or by an earlier equal one.
    OPEN = "open"
    #: Another request has let it go meanwhile, with another input or other options.
    OTHERWISE = "otherwise"
    COMPLETED = "completed"
    #: It goes on by itself, or it is to be changed and is neither ended nor a dead letter.
    ALIVE = "alive"
    #: Its deadline has passed, and no new one was given.
    EXPIRED = "expired"
    #: It has a history, which a new input would not fit.
    BEGUN = "begun"
    #: It was deleted, and has to be restored first.
    DELETED = "deleted"
    UNKNOWN = "unknown"


class RetryResult(Struct, frozen=True):
    """Outcome of a `RetryRequest`, and the generation of the run."""

    outcome: RetryOutcome
    generation: int = 0


class Fork(Struct, frozen=True, kw_only=True):
    """Request to create a run with the history of another run before a certain step."""

    run: NewRun
    #: Id of the other run, and the step where its history is cut.
    source: str
    step: str
    #: Numbered from 0, of the first attempt, with a `RecordKind.FORK` before those that lead to the step, and another
    #: one at the end if these are several. Empty: it begins at the beginning.
    records: tuple[Record, ...]
    started_at: int
    seed: str
    #: For the audit trail.
    reason: str = ""


def random_source(seed: str, generation: int) -> str:
    """Seed of the random numbers of a generation."""
    source, _, kept_by = seed.rpartition("@")
    return source if kept_by == str(generation) else f"{seed}:{generation}"


def root_generation(seed: str, generation: int) -> int:
    """The generation with an empty history that this one continues, by being reopened any number of times."""
    if generation == 1 and "@" not in seed:
        return 1
    return int(random_source(seed, generation).rpartition(":")[2])


def kept_seed(seed: str, generation: int, by: int) -> str:
    """Seed that gives generation `by` the random numbers of `generation`; empty for a run that was never claimed."""
    return f"{random_source(seed, generation)}@{by}" if seed else ""
