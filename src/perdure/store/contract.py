"""Contract with the database.

Every verb is one transaction (reads included), takes and returns frozen values, and may be awaited from any event loop.
A mutating verb may be repeated with the same arguments after its answer was lost: it recognises its first write and
returns the same answer.

Any verb may raise `StoreUnavailable` (the database cannot be reached or stayed busy past the bound; a write may or may
not have happened), `StoreReadOnly`, `StoreFull` or `StoreCorrupt`. Other errors are named at the verb that raises them.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from enum import IntFlag
from typing import TYPE_CHECKING, Protocol

from perdure.core.access import NewToken, StoredToken, TokenInfo
from perdure.core.audit import Audit, Event, EventFilter
from perdure.core.limits.admission_requests import AdmissionPreview, AdmissionRequest, AdmissionResult
from perdure.core.limits.breaker import Circuit
from perdure.core.limits.limit import LimitBounds, LimitInfo, PermitInfo, WaitingRun, WaitlistPosition
from perdure.core.model.attempt_reports import AttemptReport, ReportOutcome
from perdure.core.model.attributes import AttributeValue
from perdure.core.model.claim import ClaimByIdRequest, ClaimByIdResult, ClaimRequest, ClaimResult, LoadedRun
from perdure.core.model.dead_letter import (
    DeadLetter,
    DeadLetterFilter,
    DeadLetterPage,
    DeleteOutcome,
)
from perdure.core.model.documents import Document, DocumentKind
from perdure.core.model.events import EmitOutcome, NewStickyEvent
from perdure.core.model.graph_checkpoints import GraphDeletion, GraphEntry, GraphQuery
from perdure.core.model.lock import LockGrant, LockInfo
from perdure.core.model.outputs import BroadcastResult, NewOutput, Output, OutputKind
from perdure.core.model.record import Message, NewMessage, Record, SendOutcome
from perdure.core.model.reports import RunSnapshot
from perdure.core.model.run import (
    CountBy,
    CreatedRun,
    Fork,
    NewRun,
    QueueBacklog,
    RetryRequest,
    RetryResult,
    Run,
    RunFilter,
    RunGroup,
    RunPage,
    RunTimes,
)
from perdure.core.model.run_orders import OrderOutcome, Pause, PauseKind, RunOrder
from perdure.core.model.turn import Lease, Turn, TurnOutcome
from perdure.core.model.waits import RunWaits
from perdure.core.model.worker_info import DrainOrder, HeartbeatResult, SweepResult, WorkerInfo
from perdure.core.policy.retention import PruneRequest, PruneResult
from perdure.core.policy.watermark import Watermark
from perdure.core.routing import TypeInfo
from perdure.core.time.schedule import FiringResult, SaveOutcome, Schedule

if TYPE_CHECKING:
    from perdure.store.sql.dialect import Transaction
    from perdure.store.user_connections.transaction_step import TransactionStep


#: Names of which `outputs` reads the latest ones.
STREAM_NAMES = 20

#: The verbs that write. Each has the crash points `verb.enter`, `verb.begun`, `verb.written` and `verb.committed`.
MUTATING_VERBS = (
    "migrate",
    "create",
    "send",
    "broadcast",
    "cancel",
    "terminate",
    "decide_message",
    "report_attempt",
    "emit_event",
    "order_run",
    "set_priority",
    "pin",
    "unpin",
    "pause",
    "resume",
    "unblock",
    "retry",
    "fork",
    "delete_events",
    "save_schedule",
    "delete_schedule",
    "trigger",
    "fire_schedules",
    "acquire_lock",
    "extend_lock",
    "release_lock",
    "start_successors",
    "set_watermark",
    "remove_watermark",
    "create_token",
    "revoke_token",
    "touch_tokens",
    "admit",
    "recheck_gates",
    "delete_idle_gates",
    "set_bounds",
    "set_breaker",
    "delete",
    "undelete",
    "prune",
    "register",
    "save_sources",
    "save_report",
    "save_graph_entries",
    "copy_graph_thread",
    "delete_graph_entries",
    "heartbeat",
    "drain",
    "report_health",
    "retire",
    "sweep",
    "claim",
    "claim_by_id",
    "commit",
    "pack",
    "keep_log",
    "transact",
)


#: Runs that one call of `list` examines, if the caller names no other number.
SCAN = 10_000


#: Longest result of a step that a brief history has, in characters.
BRIEF = 1000

#: Log lines that one transaction keeps at most.
LOG_CHUNK = 500

#: Outputs that a snapshot of a run has at most.
SNAPSHOT_OUTPUTS = 1000


class Change(IntFlag):
    """Kinds of changes that a commit may announce to waiting code."""

    NONE = 0
    #: A run became ready to be claimed.
    READY = 1
    #: A run got its outcome.
    FINISHED = 2
    #: A running run was written to from outside.
    MARKED = 4
    #: A run showed something: a state, an item of a stream, a reply.
    OUTPUT = 8
    ALL = 15
    #: No commit: another server took the database's place, and may lack its last commits.
    REPLACED = 16
    #: A run was ended that a worker may hold.
    ENDED = 32


#: Called after a commit of this process that changed something, from any thread.
Listener = Callable[[Change], object]

#: Run, time, kind, actor and data of an audit event.
NewEvent = tuple[str, int, str, str, str]

#: Called with the audit events of a commit of this process, from any thread.
EventObserver = Callable[[Sequence[NewEvent]], object]


class Store(Protocol):
    """Verbs over one database."""

    #: Longest pause between two polls of a waiting task, in seconds; short where `poll_changes` is nearly free.
    poll_interval: float
    #: Best number of concurrent commits for a busy worker.
    lanes: int
    #: Largest number of entries of one inbox that `load` and `unread_messages_of_worker` return, oldest first.
    inbox_page: int
    #: Whether a writing transaction excludes all others.
    exclusive: bool
    #: Whether `announce` reaches other processes, which then rely on it.
    announces: bool
    #: Whether its connections block the calling thread, so that they must be used in a thread of their own.
    blocks: bool

    @property
    def is_notified(self) -> bool:
        """True while the changes of other processes are announced to this one; False: only polling finds them.

        Announcements may still be lost.
        """

    def announce(self, change: Change) -> None:
        """Announce something to other processes that no commit announces. From any thread; returns at once."""

    @property
    def audit(self) -> Audit:
        """Level of the audit trail that is written; may be set."""

    @audit.setter
    def audit(self, level: Audit) -> None: ...

    async def open(self) -> None:
        """Connect, check versions and settings, apply migrations if allowed. Raises `SchemaMismatch`."""

    async def close(self) -> None:
        """Close every connection; afterwards each verb raises `EngineClosed`."""

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call the listener after changes made through this object or found by `poll_changes`.

        Returns a function that stops it. This is a hint only: polling is always correct.
        """

    def observe_events(self, observer: EventObserver) -> Callable[[], None]:
        """Call the observer with the audit events of every commit made through this object.

        Returns a function that stops it.

        The observer gets the whole lifecycle, even at a lower audit level. Commits on the caller's own connections are
        not observed, because their outcome is unknown here.
        """

    async def poll_changes(self, *, watch: bool = True) -> bool:
        """True if another connection may have written since the last call; all listeners are then called.

        Nearly free; always True where it cannot be known. With `watch`, the store tells the listeners of later commits
        by itself where it can, which costs further checks for as long as it is open and others commit. A caller that
        keeps to a budget of statements does not want that.
        """

    async def now(self) -> int:
        """The database's time."""

    @property
    def clock(self) -> Callable[[], int]:
        """The database's time as last measured, advanced by the monotonic clock. Never goes back. For durable times."""

    # runs

    async def create(
        self, runs: Sequence[NewRun], actor: str, *, all_or_none: bool = False
    ) -> builtins.list[CreatedRun]:
        """Create runs in one transaction; a run whose id or idempotency key is taken yields the existing run.

        With `all_or_none`, a taken id prevents all of them, and only the runs that are taken are returned.
        """

    async def get(self, run_id: str) -> Run | None:
        """One run."""

    async def get_many(self, run_ids: Sequence[str]) -> builtins.list[Run]:
        """The existing ones of these runs, in no particular order."""

    async def list(self, filter: RunFilter, limit: int, cursor: str | None, scan: int = SCAN) -> RunPage:
        """A page of runs, after examining at most about `scan` of them. Raises `InvalidCursor`.

        A page may have fewer runs than `limit` and a cursor; the listing has ended when the cursor is None.
        """

    async def count(self, filter: RunFilter, by: CountBy, most: int) -> builtins.list[RunGroup]:
        """Numbers of runs by groups, the largest first, after examining at most about `most` runs of each source.

        Without groups, one group of all, from at most twice as many. A number that may be too small is not `exact`.
        """

    async def run_times(self, created_after: int, created_before: int, limit: int) -> builtins.list[RunTimes]:
        """Types, statuses and times of the latest runs that were created between two times, latest first.

        One statement. Deleted runs are among them.
        """

    async def attributes(self, run_ids: Sequence[str]) -> dict[str, dict[str, AttributeValue]]:
        """Attributes of runs that have any, by run and name."""

    async def history(
        self, run_id: str, after: int = -1, limit: int = 0, *, brief: bool = False
    ) -> builtins.list[Record]:
        """The records of a run past `after`, in order; at most `limit`, or all of them.

        If `brief`, results of steps that are longer than `BRIEF` characters are None; errors and all else are whole.
        """

    async def records(self, run_id: str, numbers: Sequence[int]) -> builtins.list[Record]:
        """The existing ones of these records of a run, in order."""

    async def snapshot(
        self, run_id: str, after: int = -1, kinds: Sequence[OutputKind] = (), children: int = 0
    ) -> RunSnapshot | None:
        """A run, what it waits for, its records past `after`, its outputs of these kinds and so many of its children.

        It costs one statement. Results of steps that are longer than `BRIEF` characters are None. There are at most
        `SNAPSHOT_OUTPUTS` outputs.
        """

    async def waits(self, run_id: str) -> RunWaits | None:
        """Names of what a run waited for when it was last parked; None if it named nothing."""

    async def updated_at(self, run_ids: Sequence[str]) -> dict[str, int]:
        """Time of the last change of each of these runs that exists."""

    async def inbox(self, run_id: str, after: int, limit: int = 0) -> builtins.list[Message]:
        """The unread inbox entries of a run past `after`, in order; at most `limit`, or all of them."""

    async def events(self, run_id: str) -> builtins.list[Event]:
        """The audit trail of a run, in order."""

    async def events_page(
        self, filter: EventFilter, limit: int, *, before: int | None = None, after: int | None = None
    ) -> builtins.list[Event]:
        """Audit events of all runs: before a number, newest first; or after one, oldest first."""

    async def outputs(
        self, run_id: str, kind: OutputKind, name: str | None, after: int, limit: int, *, before: int | None = None
    ) -> builtins.list[Output]:
        """Outputs of a run past a position (-1: from the first).

        Of all names if `name` is None, in the order of names. With `before`, the latest ones before that position, in
        the order of positions; if `name` is None, as many of each name, up to `STREAM_NAMES` names.
        """

    # from outside

    async def send(self, messages: Sequence[NewMessage], actor: str) -> builtins.list[SendOutcome]:
        """Put messages into inboxes in one transaction; wake waiting runs and mark running ones.

        MISSPELT is ACCEPTED with a hint, for a run that is parked. A repetition may not give it.
        """

    async def broadcast(
        self, topic: str, payload: str | None, key: str, after: str | None, limit: int, actor: str
    ) -> BroadcastResult:
        """Send a message to the next `limit` runs past `after` that subscribe to the topic, in one transaction.

        A run gets it at most once per key, so that the whole broadcast may be repeated.
        """

    async def cancel(self, run_id: str, reason: str, key: str, actor: str) -> SendOutcome:
        """Request a run's cancellation.

        A blocked run, or one that never started, ends at once; others find the request in their inbox.
        """

    async def terminate(self, run_id: str, reason: str, key: str, actor: str, *, undo: bool = False) -> OrderOutcome:
        """End a run as failed, in whatever status it is, without its code; bound children are cancelled.

        With `undo`, a run that has begun gets the order in its inbox, undoes its steps and ends then. REFUSED if it is
        blocked, because its code cannot be followed to its undos.
        """

    async def decide_message(
        self, run_id: str, number: int, key: str, payload: str | None, actor: str, *, deliver: bool
    ) -> OrderOutcome:
        """Put a message that the run has set aside into its inbox again, with another payload if given; or drop it.

        ALREADY if that was decided before, under another key.
        """

    async def emit_event(self, event: NewStickyEvent, actor: str) -> EmitOutcome:
        """Give a sticky event its value, unless it has another one, and tell the runs that wait for it."""

    async def report_attempt(self, report: AttemptReport, actor: str) -> ReportOutcome:
        """Write a report from outside about an attempt at an activity, unless the attempt was over before.

        A completion ends the run at once, in whatever unfinished status it is. A failure goes into its inbox. A
        heartbeat puts off the time at which a pending attempt times out.
        """

    async def order_run(self, order: RunOrder, actor: str) -> OrderOutcome:
        """Order a run to pause, to resume, to move to another worker, or to wake up at a time."""

    async def set_priority(self, run_id: str, priority: int, reason: str, actor: str) -> OrderOutcome:
        """Change the priority of a run that has not finished, also on the waitlist where it waits.

        DONE also if it has that priority.
        """

    async def pin(self, leases: Sequence[Lease], build: str, actor: str) -> builtins.list[bool]:
        """Pin held runs to a build: from now on only workers of that build claim them. False: the lease was lost."""

    async def unpin(self, run_id: str, reason: str, actor: str) -> OrderOutcome:
        """Let workers of every build claim a run that has not finished. DONE also if it is not pinned."""

    async def pause(self, pause: Pause, actor: str) -> None:
        """Stop workers from claiming runs of a type or a queue. An existing pause is left as it is."""

    async def resume(self, kind: PauseKind, name: str, actor: str, reason: str = "") -> None:
        """End the pause of a type or a queue."""

    async def pauses(self) -> builtins.list[Pause]:
        """Every paused type and queue."""

    async def unblock(self, types: Sequence[str], reasons: Sequence[str], actor: str) -> int:
        """Make all runs of these types that are blocked for these reasons pending again, for new code; how many."""

    async def retry(self, request: RetryRequest, actor: str) -> RetryResult:
        """Let one run go again, as its state allows; see `RetryCause`. A repetition changes nothing."""

    async def delete_events(self, upto: int, before: int, actor: str) -> None:
        """Delete the events up to a number that are older than a time."""

    async def fork(self, fork: Fork, actor: str) -> CreatedRun:
        """Create a run with a history, unless its id exists."""

    # schedules

    async def schedule(self, schedule_id: str) -> Schedule | None:
        """One schedule."""

    async def schedules(self, after: str, limit: int) -> builtins.list[Schedule]:
        """Schedules in the order of their ids, after one."""

    async def save_schedule(
        self, schedule: Schedule, version: int, write_id: str, event: str, actor: str, reason: str = ""
    ) -> SaveOutcome:
        """Create a schedule (version 0), or change one that still has the given version."""

    async def delete_schedule(self, schedule_id: str, actor: str, reason: str = "") -> None:
        """Delete a schedule; its runs continue."""

    async def trigger(
        self, schedule_id: str, fire_times: Sequence[int], key: str, actor: str, reason: str = ""
    ) -> builtins.list[str] | None:
        """Start the runs of some fire times, or, without any, one run under a key; returns their ids.

        None if there is no such schedule.
        """

    async def list_fires(self, schedule_id: str, limit: int) -> builtins.list[Run]:
        """The runs of the latest fire times of a schedule, latest first; without those that were started by hand."""

    async def fire_schedules(self, limit: int, actor: str) -> FiringResult:
        """Start one run for each fire time that is due, of up to `limit` schedules."""

    # gates

    async def preview_admission(
        self, pairs: Sequence[tuple[str, str]], limit: int, *, newest: bool = False
    ) -> AdmissionPreview:
        """Preview of admission: ready runs that need permits, and when the next waiting run may pass.

        Of each queue and type, `limit` runs: the first, or the `newest`.
        """

    async def admit(self, request: AdmissionRequest) -> AdmissionResult:
        """Grant permits to runs and claim them; put the others on waitlists."""

    async def waitlist_position(self, run_id: str) -> WaitlistPosition | None:
        """Position of a run on a waitlist; None if it is on none."""

    async def waitlisted_types(self, types: Sequence[str]) -> set[str]:
        """The types that have a run on a waitlist."""

    async def recheck_gates(self, actor: str) -> None:
        """Re-examine every gate that waits for room, in case a holder died without releasing its permit."""

    async def delete_idle_gates(self, limit: int, actor: str) -> int:
        """Delete up to `limit` gates of unused keys; returns how many."""

    async def set_bounds(self, gate: str, bounds: LimitBounds | None, actor: str, reason: str = "") -> None:
        """Override the limit declared in code, at once and for all workers; None removes the override."""

    async def set_breaker(self, gate: str, circuit: Circuit | None, actor: str, reason: str = "") -> None:
        """Hold a breaker open or closed; None returns it to its rule with empty counters."""

    async def permits(self, gates: Sequence[str], limit: int) -> builtins.list[PermitInfo]:
        """Permits of these gates that count, by gate and the oldest first; at most `limit` of all."""

    async def waiting_runs(self, gates: Sequence[str], limit: int) -> builtins.list[WaitingRun]:
        """Runs on the waitlists of these gates, by gate and in the order in which each type is admitted.

        At most `limit` of all.
        """

    async def gates(self, after: str, limit: int) -> builtins.list[LimitInfo]:
        """Gates in the order of their names, after one."""

    # named locks

    async def acquire_lock(self, name: str, owner: str, nonce: str, ttl: int, actor: str) -> LockGrant:
        """Acquire a free lock for `ttl` microseconds; the nonce identifies the holder."""

    async def extend_lock(self, name: str, nonce: str, ttl: int, actor: str) -> LockInfo | None:
        """Hold a lock for `ttl` microseconds from now; None if it is no longer held under that nonce."""

    async def release_lock(self, name: str, token: int, nonce: str | None, actor: str, reason: str = "") -> bool:
        """Release a lock held under that token and nonce.

        Without a nonce, take it away from the holder of that token.
        """

    async def start_successors(self, names: Sequence[str], actor: str) -> int:
        """Start the next run of each singleton whose current run has ended; returns how many."""

    async def locks(self, after: str, limit: int, name: str | None = None) -> builtins.list[LockInfo]:
        """Held locks in the order of their names, after one; or only the lock of a name."""

    async def set_watermark(self, watermark: Watermark, actor: str, reason: str = "") -> None:
        """Set the watermark of a queue or a type, replacing any earlier one."""

    async def remove_watermark(self, kind: str, name: str, actor: str, reason: str = "") -> None:
        """Remove the watermark of a queue or a type."""

    async def watermarks(self) -> builtins.list[Watermark]:
        """Every watermark."""

    async def depth(self, kind: str, name: str, limit: int) -> int:
        """Number of ready runs that wait, in a queue or of a type, counted up to `limit`."""

    async def backlog(self, queue: str, limit: int) -> QueueBacklog:
        """Number of ready runs that wait in a queue, counted up to `limit`, and since when the oldest of them is ready.

        Of a queue with more runs, the oldest is that of the runs that were counted.
        """

    # access over HTTP

    async def create_token(self, new: NewToken, actor: str) -> TokenInfo | None:
        """Store a token; None if another valid one has its name, another one its digest, or its parent is not valid."""

    async def revoke_token(self, name: str, created_at: int, actor: str) -> TokenInfo | None:
        """Revoke the token of that name that was created then, with its sessions; None if there is none."""

    async def touch_tokens(self, uses: Sequence[tuple[str, int]], actor: str) -> None:
        """Store times of use, by digest. Never makes one earlier."""

    async def token(self, digest: str) -> StoredToken | None:
        """The token of a digest, valid or not."""

    async def tokens(self, after: str, limit: int, name: str | None = None) -> builtins.list[TokenInfo]:
        """Tokens without sessions, in the order of their names, after one; or only the token or session of a name."""

    def user_transaction(
        self, connection: object, actor: str, *, locking: bool = True
    ) -> AbstractAsyncContextManager[Transaction]:
        """The transaction that the caller has open on their own connection, for `create` and `send`.

        Without `locking`, rows are only read before others are written. Perdure never repeats it, and the store need
        not be open. Raises `UsageError` and `SchemaMismatch`.
        """

    # the dead, and what is old

    async def list_dead_letters(self, filter: DeadLetterFilter, limit: int, cursor: str | None) -> DeadLetterPage:
        """Dead letters, latest run first. Raises `InvalidCursor`."""

    async def get_dead_letter(self, run_id: str) -> DeadLetter | None:
        """One dead letter; None if the run does not exist or is not dead."""

    async def delete(self, run_id: str, reason: str, actor: str, *, discard: bool = False) -> DeleteOutcome:
        """Hide a run from listings. One that is not over is paused until it is restored.

        REFUSED for a blocked dead letter, which has to be discarded. With `discard`, only a dead letter is hidden; a
        blocked one is cancelled first.
        """

    async def undelete(self, run_id: str, actor: str) -> DeleteOutcome:
        """Restore a deleted run; one that was not over goes on, unless it had been paused before."""

    async def prune(self, what: PruneRequest, limit: int, cursor: str | None, actor: str) -> PruneResult:
        """Permanently delete finished runs and all their data, one batch that examines `limit` runs.

        A repetition after a lost answer finds less to do.
        """

    # workers

    async def register(self, worker: WorkerInfo, serves: Sequence[TypeInfo] = ()) -> tuple[str, ...]:
        """Register a worker and the types that it serves; return those that belong to another runtime."""

    async def heartbeat(self, worker_id: str, running: str | None = None) -> HeartbeatResult:
        """Renew the worker's row. LOST: it was declared dead and holds no runs any more. DRAIN: it is to drain.

        `running`: JSON of `RunningSteps`, the steps that it has had under way for a while, for `workers`.
        """

    async def drain(self, worker_id: str, order: DrainOrder, actor: str) -> OrderOutcome:
        """Order a worker to drain; it finds the order with its next heartbeat.

        ALREADY if another order was given before. FINISHED if it has stopped or is dead; the process of a dead one
        still finds the order, if it comes back.
        """

    async def report_health(self, worker_id: str, errors: int, problem: str) -> None:
        """Store the error count and the latest error of the worker's background loops, for `workers`."""

    async def retire(self, worker_id: str) -> None:
        """End a worker's registration and release the runs that it still holds."""

    async def sweep(self, limit: int) -> SweepResult:
        """Declare overdue workers dead, release their runs (raising the tokens) and fail runs past their deadline."""

    async def workers(self) -> builtins.list[WorkerInfo]:
        """Every worker that is alive or was recently."""

    async def save_sources(self, sources: Sequence[Document], actor: str) -> None:
        """Store the sources of one build that are new or have changed; those of the latest few builds are kept."""

    async def save_report(self, report: Document, actor: str) -> None:
        """Store the report of a deploy check under its id; only the latest few are kept."""

    async def documents(self, kind: DocumentKind, name: str | None, limit: int) -> builtins.list[Document]:
        """Sources or reports, of one name if given, latest first."""

    async def save_graph_entries(self, entries: Sequence[GraphEntry], actor: str) -> None:
        """Store checkpoints of graphs and writes; an entry that does not replace leaves the first one as it is."""

    async def copy_graph_thread(self, source: str, target: str, actor: str) -> None:
        """Copy the checkpoints and writes of a thread to another one, except for those that it has."""

    async def delete_graph_entries(self, choice: GraphDeletion, actor: str) -> None:
        """Delete checkpoints of graphs with their writes, all of the choice or none."""

    async def graph_checkpoints(self, query: GraphQuery) -> builtins.list[GraphEntry]:
        """Checkpoints of graphs, the largest id first, each followed by its writes unless the query is brief."""

    async def types(self) -> builtins.list[TypeInfo]:
        """Every registered type, and if it is enabled."""

    async def leases(self, worker_id: str) -> builtins.list[Lease]:
        """Leases that the database assigns to the worker."""

    # the hot path

    async def claim(self, request: ClaimRequest) -> ClaimResult:
        """Wake runs that are due, then claim ready runs. Each claim is counted; a poison run is blocked."""

    async def claim_by_id(self, request: ClaimByIdRequest) -> ClaimByIdResult:
        """Claim one run by its id, if it is ready and free. Counts as a claim, and blocks a poison run."""

    async def ready_run_ids(self, types: Sequence[str], queues: Sequence[str], limit: int) -> builtins.list[str]:
        """Up to `limit` runs that could be worked on now, longest waiting first, without paused ones."""

    async def load(self, run_ids: Sequence[str]) -> builtins.list[LoadedRun]:
        """Histories and unread inboxes of runs, in one read."""

    async def unread_messages(self, run_ids: Sequence[str]) -> builtins.list[Message]:
        """Unread inbox entries of these runs, in one read."""

    async def unread_messages_of_worker(self, worker_id: str) -> builtins.list[Message]:
        """Unread inbox entries of the worker's running runs that were written to from outside."""

    async def commit(self, turns: Sequence[Turn], actor: str) -> builtins.list[TurnOutcome]:
        """Commit turns in one transaction, each accepted or rejected on its own.

        Returns one verdict per turn, in order.
        """

    async def pack(self, lease: Lease, first: int, last: int, actor: str) -> bool:
        """Let few rows hold records `first` to `last` of a held run, which are durable; False: the lease was lost.

        Every verb reads the records as before. Records that have to stay rows of their own do. One of the records past
        `last` has to exist, so that the newest record is never packed.
        """

    async def keep_log(self, lines: Sequence[tuple[str, NewOutput]], most: int, actor: str) -> None:
        """Add lines, each with the id of its run, to the logs of runs; each run keeps the latest `most` lines.

        Lines of a run that does not exist are dropped. At most `LOG_CHUNK` lines.
        """

    async def transact(self, step: TransactionStep) -> TurnOutcome:
        """Run a user's function and write the record of its result in one transaction: APPLIED or LOST.

        Raises what the function raises; `Interrupted` if the database failed and nothing was written; `CommitUnknown`
        if that is unknown: ask `turn_outcome` before trying again.
        """

    async def turn_outcome(self, turn: Turn, actor: str) -> TurnOutcome:
        """Outcome of a turn with one record: APPLIED, LOST, or BUSY if it is missing and may be tried again."""
