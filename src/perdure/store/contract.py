"""The contract with the database.

Every verb is one transaction (reads included), takes and returns frozen values, and may be awaited from any event loop.
Every mutating verb may be repeated with the same arguments after its answer was lost: it then recognises what it wrote the
first time and gives the same answer.

Any verb may raise `StoreUnavailable` (the database cannot be reached or stayed busy past the bound; whether a write happened
is then unknown), `StoreReadOnly`, `StoreFull` or `StoreCorrupt`. Others are named where they arise.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from enum import IntFlag
from typing import TYPE_CHECKING, Protocol

from perdure.core.audit import Audit, Event, EventFilter
from perdure.core.limits.admission import AdmissionPreview, AdmissionRequest, AdmissionResult
from perdure.core.limits.breaker import Circuit
from perdure.core.limits.limit import LimitBounds, LimitInfo, WaitlistPosition
from perdure.core.model.claim import ClaimByIdRequest, ClaimByIdResult, ClaimRequest, ClaimResult, LoadedRun
from perdure.core.model.dead_letter import (
    DeadLetter,
    DeadLetterFilter,
    DeadLetterPage,
    DeleteOutcome,
    Requeue,
    RequeueOutcome,
)
from perdure.core.model.lock import LockGrant, LockInfo
from perdure.core.model.orders import OrderOutcome, Pause, PauseKind, RunOrder
from perdure.core.model.outputs import BroadcastResult, Output, OutputKind
from perdure.core.model.record import Message, NewMessage, Record, SendOutcome
from perdure.core.model.reopen import Fork, ReopenOutcome
from perdure.core.model.run import CreatedRun, NewRun, Run, RunFilter, RunPage
from perdure.core.model.turn import Lease, Turn, TurnOutcome
from perdure.core.model.worker_info import SweepResult, WorkerInfo
from perdure.core.policy.retention import PruneRequest, PruneResult
from perdure.core.policy.watermark import Watermark
from perdure.core.routing import TypeInfo
from perdure.core.time.schedule import FiringResult, SaveOutcome, Schedule

if TYPE_CHECKING:
    from perdure.store.sql.dialect import Transaction
    from perdure.store.user_connections.transaction_step import TransactionStep


#: The verbs that write. Each has the crash points `verb.enter`, `verb.begun`, `verb.written` and `verb.committed`.
MUTATING_VERBS = (
    "migrate",
    "create",
    "send",
    "broadcast",
    "cancel",
    "control",
    "pause",
    "resume",
    "unblock",
    "reopen",
    "recover",
    "fork",
    "delete_events",
    "save_schedule",
    "delete_schedule",
    "trigger",
    "fire",
    "acquire_lock",
    "extend_lock",
    "release_lock",
    "succeed",
    "set_watermark",
    "remove_watermark",
    "admit",
    "recheck_gates",
    "delete_idle_gates",
    "set_bounds",
    "set_breaker",
    "requeue",
    "delete",
    "undelete",
    "prune",
    "register",
    "heartbeat",
    "report_health",
    "retire",
    "sweep",
    "claim",
    "take",
    "commit",
    "transact",
)


class Change(IntFlag):
    """What a commit may have changed for somebody who waits."""

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
    #: No commit: the database is another one than before, and may lack the last commits of that.
    REPLACED = 16


#: Called after such a commit of this process, from any thread.
Listener = Callable[[Change], object]

#: Run, time, kind, actor and data of a line of the audit trail.
NewEvent = tuple[str, int, str, str, str]

#: Called after a commit of this process with the lines that it had, from any thread.
EventObserver = Callable[[Sequence[NewEvent]], object]


class Store(Protocol):
    """What can be done with one database."""

    #: How long, in seconds, whoever waits may go without asking; small where `changed` is nearly free.
    poll_interval: float
    #: How many commits at once serve a busy worker best.
    lanes: int
    #: So many entries of one inbox, the oldest, are what `load` and `marked` give at the most.
    inbox_page: int
    #: Whether a transaction that writes shuts out every other one.
    exclusive: bool
    #: Whether its own connections block whoever uses them, and so belong into a thread.
    blocks: bool

    @property
    def audit(self) -> Audit:
        """How much of the audit trail is written; may be set."""

    @audit.setter
    def audit(self, level: Audit) -> None: ...

    async def open(self) -> None:
        """Connect, check versions and settings, apply migrations if allowed. Raises `SchemaMismatch`."""

    async def close(self) -> None:
        """Let go of every connection; afterwards each verb raises `EngineClosed`."""

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Be told of changes made through this object or found by `changed`; the answer ends it. A hint: polling is correct."""

    def observe_events(self, observer: EventObserver) -> Callable[[], None]:
        """Be told of the lines of every commit made through this object; the answer ends it.

        Of the whole lifecycle, also if less is written. Not of those on a connection of the caller's, about whose commit nothing is known here.
        """

    async def changed(self) -> bool:
        """Whether another connection may have written since anybody last asked; if so, all listeners are told.

        Nearly free; True where it cannot be known.
        """

    async def now(self) -> int:
        """The database's time."""

    def clock(self) -> int:
        """The database's time as last measured, carried on by the monotonic clock; it never goes back. For durable times."""

    # runs

    async def create(
        self, runs: Sequence[NewRun], actor: str, *, all_or_none: bool = False
    ) -> builtins.list[CreatedRun]:
        """Create runs, in one transaction; one whose id or idempotency key is taken yields the run that is there.

        With `all_or_none`, none is created where one is taken, and only those that are taken are answered for.
        """

    async def get(self, run_id: str) -> Run | None:
        """One run."""

    async def get_many(self, run_ids: Sequence[str]) -> builtins.list[Run]:
        """Those of the runs that exist, in no particular order."""

    async def list(self, filter: RunFilter, limit: int, cursor: str | None) -> RunPage:
        """Runs, newest first. Raises `InvalidCursor`."""

    async def history(self, run_id: str) -> builtins.list[Record]:
        """Every record of a run, in order."""

    async def inbox(self, run_id: str, after: int, limit: int = 0) -> builtins.list[Message]:
        """The unread inbox entries of a run past `after`, in order; at most `limit`, or all of them."""

    async def events(self, run_id: str) -> builtins.list[Event]:
        """The audit trail of a run, in order."""

    async def events_page(
        self, filter: EventFilter, limit: int, *, before: int | None = None, after: int | None = None
    ) -> builtins.list[Event]:
        """The audit trail of all runs: before a number, the newest first; or after one, the oldest first."""

    async def outputs(
        self, run_id: str, kind: OutputKind, name: str | None, after: int, limit: int
    ) -> builtins.list[Output]:
        """What a run shows, past a position (-1: from the first); of all names if None, in the order of names."""

    # from outside

    async def send(self, messages: Sequence[NewMessage], actor: str) -> builtins.list[SendOutcome]:
        """Put messages into inboxes, wake who waits and mark who runs; one transaction."""

    async def broadcast(
        self, topic: str, payload: str | None, key: str, after: str | None, limit: int, actor: str
    ) -> BroadcastResult:
        """Send a message, named as the topic, to the next so many runs past a run id that listen to it; one transaction.

        None of them gets it twice under one key, so that the whole of it may be repeated.
        """

    async def cancel(self, run_id: str, reason: str, key: str, actor: str) -> SendOutcome:
        """Ask a run to stop. One that never started, or is blocked, is cancelled at once; others find it in their inbox."""

    async def control(self, order: RunOrder, actor: str) -> OrderOutcome:
        """Tell a run to pause, to go on, to move to another worker, or when to wake up."""

    async def pause(self, pause: Pause, actor: str) -> None:
        """Let no worker take runs of a type, or of a queue; a pause that is there stays as it is."""

    async def resume(self, kind: PauseKind, name: str, actor: str) -> None:
        """Let them be taken again."""

    async def pauses(self) -> builtins.list[Pause]:
        """Every type and queue that is paused."""

    async def unblock(
        self, run_ids: Sequence[str] | None, types: Sequence[str], reasons: Sequence[str], actor: str
    ) -> int:
        """Make blocked runs pending again: the named ones, or all of these types; only those blocked for these reasons."""

    async def reopen(self, run_id: str, generation: int, deadline: int | None, actor: str) -> ReopenOutcome:
        """Let a run whose `generation` failed or was cancelled go on as the next one, by another deadline if one is given."""

    async def recover(self, run_id: str, token: int, actor: str) -> bool:
        """Give a run, last seen with that token, its attempts anew; False if it has used up none, or is being worked on."""

    async def delete_events(self, upto: int, before: int, actor: str) -> None:
        """Delete the events up to a number that are older than a time."""

    async def fork(self, fork: Fork, actor: str) -> CreatedRun:
        """Create a run that has a past, unless one of its id is there."""

    # schedules

    async def schedule(self, schedule_id: str) -> Schedule | None:
        """One schedule."""

    async def schedules(self, after: str, limit: int) -> builtins.list[Schedule]:
        """Schedules in the order of their ids, past one."""

    async def save_schedule(
        self, schedule: Schedule, version: int, write_id: str, event: str, actor: str
    ) -> SaveOutcome:
        """Create a schedule (version 0), or change one that still is of the version at which it was looked at."""

    async def delete_schedule(self, schedule_id: str, actor: str) -> None:
        """Forget a schedule; its runs go on."""

    async def trigger(self, schedule_id: str, slots: Sequence[int], key: str, actor: str) -> builtins.list[str] | None:
        """Start runs of some slots, or, of none, one under a key; their ids. None if there is no such schedule."""

    async def fire(self, limit: int, actor: str) -> FiringResult:
        """Let the slots that are due of so many schedules become runs, each of them once."""

    # gates

    async def look(self, pairs: Sequence[tuple[str, str]], limit: int, *, newest: bool = False) -> AdmissionPreview:
        """Runs of these queues and types that are ready and have yet to pass gates, and when somebody in a line may pass.

        Of each queue and type `limit`: the first, or the `newest`.
        """

    async def admit(self, request: AdmissionRequest) -> AdmissionResult:
        """Let runs pass gates, and claim those that do; the others stand in line."""

    async def standing(self, run_id: str) -> WaitlistPosition | None:
        """Where a run stands in line; None if it does not."""

    async def lined(self, types: Sequence[str]) -> set[str]:
        """Those of the types of which somebody stands in a line."""

    async def recheck_gates(self, actor: str) -> None:
        """Have every gate looked at that waits for room: somebody may have gone without a word."""

    async def delete_idle_gates(self, limit: int, actor: str) -> int:
        """Forget gates of keys that nobody uses any more, so many at the most; how many."""

    async def set_bounds(self, gate: str, bounds: LimitBounds | None, actor: str) -> None:
        """Override what the code says about a gate, at once and for everybody; or, with None, no longer."""

    async def set_breaker(self, gate: str, circuit: Circuit | None, actor: str) -> None:
        """Open or close a breaker until somebody says otherwise; or, with None, leave it to its rule, nothing counted."""

    async def gates(self, after: str, limit: int) -> builtins.list[LimitInfo]:
        """Gates in the order of their names, past one."""

    # named locks

    async def acquire_lock(self, name: str, owner: str, nonce: str, ttl: int, actor: str) -> LockGrant:
        """Take a lock that nobody holds, for so many microseconds; it proves itself by the nonce."""

    async def extend_lock(self, name: str, nonce: str, ttl: int, actor: str) -> LockInfo | None:
        """Hold a lock for so many microseconds from now on; None if it is not held under that nonce any more."""

    async def release_lock(self, name: str, token: int, nonce: str | None, actor: str) -> bool:
        """Give up a lock that is held under that token and nonce; without a nonce, whoever holds it under that token loses it."""

    async def succeed(self, names: Sequence[str], actor: str) -> int:
        """Let those begin whose turn it is, of singletons one of whose runs has ended or was created by a turn; how many."""

    async def locks(self, after: str, limit: int, name: str | None = None) -> builtins.list[LockInfo]:
        """Locks that somebody holds, in the order of their names, past one; or only the one of a name."""

    async def set_watermark(self, watermark: Watermark, actor: str) -> None:
        """Set a watermark of a queue or a type, in place of the one that is there."""

    async def remove_watermark(self, kind: str, name: str, actor: str) -> None:
        """Remove the watermark of a queue or a type."""

    async def watermarks(self) -> builtins.list[Watermark]:
        """Every watermark that is set."""

    async def depth(self, kind: str, name: str, limit: int) -> int:
        """How many runs are ready and wait, in a queue or of a type, counted up to `limit`."""

    def borrowed(
        self, connection: object, actor: str, *, locking: bool = True
    ) -> AbstractAsyncContextManager[Transaction]:
        """The transaction that the caller has open on a connection of their own, for `create` and `send` over a `Transaction`.

        Without `locking`, rows are only looked at before others are written. Nothing of it is ever repeated here; an open store
        is not needed. Raises `UsageError` and `SchemaMismatch`.
        """

    # the dead, and what is old

    async def dead(self, filter: DeadLetterFilter, limit: int, cursor: str | None) -> DeadLetterPage:
        """Dead letters, the latest run first. Raises `InvalidCursor`."""

    async def letter(self, run_id: str) -> DeadLetter | None:
        """One dead letter; None if there is no such run, or it is none."""

    async def requeue(self, order: Requeue, actor: str) -> RequeueOutcome:
        """Let a dead run, or one that was cancelled, go on; a finished one in its next generation."""

    async def delete(self, run_id: str, reason: str, actor: str, *, discard: bool = False) -> DeleteOutcome:
        """Hide a finished run from listings. With `discard`, only a dead letter; one that is blocked is cancelled by that."""

    async def undelete(self, run_id: str, actor: str) -> DeleteOutcome:
        """Bring a deleted run back."""

    async def prune(self, what: PruneRequest, limit: int, cursor: str | None, actor: str) -> PruneResult:
        """Delete finished runs for good, with all that belongs to them: one batch, which looks at `limit` runs.

        Asked again after its answer was lost, it finds less to do.
        """

    # workers

    async def register(self, worker: WorkerInfo, serves: Sequence[TypeInfo] = ()) -> None:
        """Begin a life, and have the registry say what is served."""

    async def heartbeat(self, worker_id: str) -> bool:
        """Renew the worker's one row. False: it has been declared dead and holds nothing any more."""

    async def report_health(self, worker_id: str, errors: int, problem: str) -> None:
        """Keep how many errors the worker's background loops have met, and the latest, for `workers`."""

    async def retire(self, worker_id: str) -> None:
        """End a life in order, giving back whatever it still held."""

    async def sweep(self, limit: int) -> SweepResult:
        """Declare overdue workers dead, give back their runs (raising the tokens) and fail what is past its deadline."""

    async def workers(self) -> builtins.list[WorkerInfo]:
        """Every worker that is alive or was lately."""

    async def types(self) -> builtins.list[TypeInfo]:
        """Every type that somebody has registered, and whether it is enabled."""

    async def holdings(self, worker_id: str) -> builtins.list[Lease]:
        """What the worker is said to hold."""

    # the hot path

    async def claim(self, request: ClaimRequest) -> ClaimResult:
        """Wake what is due, then take ready runs. Counts itself on each; sets aside what is poison."""

    async def take(self, request: ClaimByIdRequest) -> ClaimByIdResult:
        """Take one run by its id, if it is ready and nobody has it. Counts itself, and sets aside what is poison, as a claim does."""

    async def due(self, types: Sequence[str], queues: Sequence[str], limit: int) -> builtins.list[str]:
        """So many runs that could be worked on now, those that have waited longest first; nothing that is paused."""

    async def load(self, run_ids: Sequence[str]) -> builtins.list[LoadedRun]:
        """Histories and unread inboxes, in one read."""

    async def unread(self, run_ids: Sequence[str]) -> builtins.list[Message]:
        """Unread inbox entries of these runs, in one read."""

    async def marked(self, worker_id: str) -> builtins.list[Message]:
        """Unread inbox entries of the runs that this worker is running and that were written to from outside."""

    async def commit(self, turns: Sequence[Turn], actor: str) -> builtins.list[TurnOutcome]:
        """Make turns durable in one transaction, each accepted or rejected by itself; one verdict a turn, in order."""

    async def transact(self, step: TransactionStep) -> TurnOutcome:
        """Run a function of the user's and write the record of its result in one transaction: APPLIED or LOST.

        What the function raises is raised. Raises `Interrupted` if the database failed and nothing is there, and `Doubtful` if
        that is unknown; then ask `recorded` before trying again.
        """

    async def recorded(self, turn: Turn, actor: str) -> TurnOutcome:
        """What became of the one record of a turn: APPLIED, LOST, or BUSY if it is not there and may be tried again."""
