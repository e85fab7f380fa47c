"""Base of the stores on all SQL databases: the verbs, each as one transaction over a `Transaction`.

Each database adds how to connect, how to run transactions that write and that read, and how to claim and to commit,
which are spelled out in full for each database. A forked process must open a store of its own.
"""

from __future__ import annotations

import builtins
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from functools import partial
from typing import TypeVar

from msgspec.structs import replace

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
from perdure.core.system import System
from perdure.core.time.schedule import FiringResult, SaveOutcome, Schedule
from perdure.errors import EngineClosed, SchemaMismatch
from perdure.store import migrations
from perdure.store.contract import Change, EventObserver, Listener
from perdure.store.migrations import MigrationStatus
from perdure.store.sql import locks, pauses, reads, schedules, singletons, watermarks, workers
from perdure.store.sql.audit import delete_events, events_page
from perdure.store.sql.dialect import Body, Dialect, Row, Transaction, TransactionNotices
from perdure.store.sql.limits import breakers, gates, waitlist
from perdure.store.sql.limits.admit_runs import admit
from perdure.store.sql.runs import dead_letters
from perdure.store.sql.runs.claim import claim_by_id, due
from perdure.store.sql.runs.create import create, unblock
from perdure.store.sql.runs.inbox import broadcast, cancel, send
from perdure.store.sql.runs.orders import control
from perdure.store.sql.runs.outputs import outputs
from perdure.store.sql.runs.pruning import prune
from perdure.store.sql.runs.reopen import fork as fork_run
from perdure.store.sql.runs.reopen import recover, reopen
from perdure.store.sql.runs.terminate import terminate
from perdure.store.sql.turn import recorded
from perdure.store.user_connections.transaction import StoreDatabase, join_transaction
from perdure.store.user_connections.transaction_step import TransactionStep, run_transaction_step

T = TypeVar("T")
Trace = Callable[[str], object]

_log = logging.getLogger("perdure.store")


class SqlStore(ABC):
    """The verbs of `Store` that are the same on every database."""

    poll_interval: float
    lanes: int
    inbox_page = 1000
    exclusive = False
    blocks = False
    #: What the database is called in messages.
    where: str
    _system: System

    def __init__(self, dialect: Dialect, tables: str, *, migrate: bool, audit: Audit) -> None:
        #: `tables` is how the names of the tables begin, with their schema if they have one.
        self._dialect = dialect
        self._tables = tables
        self._may_migrate = migrate
        self.audit = audit
        self._listeners: list[Listener] = []
        self._observers: list[EventObserver] = []
        self._process = 0

    async def open(self) -> None:
        """Connect, check versions and settings, apply migrations if allowed. Raises `SchemaMismatch`."""
        await self._connect()
        try:
            if await self._read("status", self._pending):
                if not self._may_migrate:
                    raise SchemaMismatch(f"{self.where} lacks tables of Perdure. Run `perdure migrate` once.")
                await self._write("migrate", "", self._migrate)
        except BaseException:
            await self.close()
            raise

    @abstractmethod
    async def close(self) -> None:
        """Close every connection; afterwards each verb raises `EngineClosed`."""

    @abstractmethod
    async def changed(self) -> bool:
        """True if another connection may have written since the last call; all listeners are then called."""

    @abstractmethod
    def clock(self) -> int:
        """The database's time as last measured, advanced by the monotonic clock. Never goes back. For durable times."""

    @abstractmethod
    async def now(self) -> int:
        """The database's time."""

    @abstractmethod
    async def claim(self, request: ClaimRequest) -> ClaimResult:
        """Wake runs that are due, then claim ready runs. Each claim is counted; a poison run is blocked."""

    @abstractmethod
    async def commit(self, turns: Sequence[Turn], actor: str) -> builtins.list[TurnOutcome]:
        """Commit turns in one transaction, each accepted or rejected on its own."""

    @abstractmethod
    async def query(self, sql: str, params: Sequence[object] = ()) -> builtins.list[Row]:
        """Run one SELECT, with `?` for parameters. Tables are called `perdure_…`, whatever their prefix. For tools."""

    @abstractmethod
    async def trace(self, callback: Trace | None) -> None:
        """Show every statement that writes to a callback. For tests and tools."""

    @abstractmethod
    def lend(self) -> AbstractContextManager[object] | AbstractAsyncContextManager[object]:
        """A connection of the driver's own kind, for a transaction of the user's."""

    @abstractmethod
    async def _connect(self) -> None:
        """Become usable in this process."""

    @abstractmethod
    async def _write(self, verb: str, actor: str, body: Body[T]) -> T:
        """Run a verb that writes, as one transaction."""

    @abstractmethod
    async def _read(self, verb: str, body: Body[T]) -> T:
        """Run a verb that only reads."""

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call the listener after changes made through this object or found by `changed`."""
        self._listeners = [*self._listeners, listener]

        def unsubscribe() -> None:
            self._listeners = [one for one in self._listeners if one is not listener]

        return unsubscribe

    def observe_events(self, observer: EventObserver) -> Callable[[], None]:
        """Call the observer with the audit events of every commit made through this object."""
        self._observers = [*self._observers, observer]

        def stop() -> None:
            self._observers = [one for one in self._observers if one is not observer]

        return stop

    async def create(
        self, runs: Sequence[NewRun], actor: str, *, all_or_none: bool = False
    ) -> builtins.list[CreatedRun]:
        """Create runs in one transaction; a run whose id or idempotency key is taken yields the existing run."""
        return await self._write("create", actor, lambda tx: create(tx, runs, all_or_none=all_or_none))

    async def get(self, run_id: str) -> Run | None:
        """One run."""
        return await self._read("get", lambda tx: reads.get(tx, run_id))

    async def get_many(self, run_ids: Sequence[str]) -> builtins.list[Run]:
        """The existing ones of these runs, in no particular order."""
        return await self._read("get_many", lambda tx: reads.get_many(tx, run_ids))

    async def list(self, filter: RunFilter, limit: int, cursor: str | None) -> RunPage:
        """Runs, newest first. Raises `InvalidCursor`."""
        return await self._read("list", lambda tx: reads.list_runs(tx, filter, limit, cursor))

    async def history(self, run_id: str) -> builtins.list[Record]:
        """Every record of a run, in order."""
        return await self._read("history", lambda tx: reads.history(tx, run_id))

    async def inbox(self, run_id: str, after: int, limit: int = 0) -> builtins.list[Message]:
        """The unread inbox entries of a run past `after`, in order; at most `limit`, or all of them."""
        return await self._read("inbox", lambda tx: reads.inbox(tx, run_id, after, limit))

    async def events(self, run_id: str) -> builtins.list[Event]:
        """The audit trail of a run, in order."""
        return await self._read("events", lambda tx: reads.events(tx, run_id))

    async def events_page(
        self, filter: EventFilter, limit: int, *, before: int | None = None, after: int | None = None
    ) -> builtins.list[Event]:
        """Audit events of all runs: before a number, newest first; or after one, oldest first."""
        return await self._read("events_page", lambda tx: events_page(tx, filter, limit, before=before, after=after))

    async def outputs(
        self, run_id: str, kind: OutputKind, name: str | None, after: int, limit: int
    ) -> builtins.list[Output]:
        """Outputs of a run past a position (-1: from the first)."""
        return await self._read("outputs", lambda tx: outputs(tx, run_id, kind, name, after, limit))

    async def send(self, messages: Sequence[NewMessage], actor: str) -> builtins.list[SendOutcome]:
        """Put messages into inboxes in one transaction; wake waiting runs and mark running ones."""
        return await self._write("send", actor, lambda tx: send(tx, messages))

    async def broadcast(
        self, topic: str, payload: str | None, key: str, after: str | None, limit: int, actor: str
    ) -> BroadcastResult:
        """Send a message to the next `limit` runs past `after` that subscribe to the topic, in one transaction."""

        async def body(tx: Transaction) -> BroadcastResult:
            return await broadcast(tx, topic, payload, key, after, limit, lambda messages: send(tx, messages))

        return await self._write("broadcast", actor, body)

    async def cancel(self, run_id: str, reason: str, key: str, actor: str) -> SendOutcome:
        """Request a run's cancellation."""
        return await self._write("cancel", actor, lambda tx: cancel(tx, run_id, reason, key))

    async def terminate(self, run_id: str, reason: str, key: str, actor: str, *, undo: bool = False) -> OrderOutcome:
        """End a run as failed, in whatever status it is, without its code."""
        return await self._write("terminate", actor, lambda tx: terminate(tx, run_id, reason, key, undo=undo))

    def borrowed(
        self, connection: object, actor: str, *, locking: bool = True
    ) -> AbstractAsyncContextManager[Transaction]:
        """The transaction that the caller has open on their own connection, for `create` and `send`."""
        return join_transaction(connection, self._home, actor, locking=locking)

    async def control(self, order: RunOrder, actor: str) -> OrderOutcome:
        """Order a run to pause, to resume, to move to another worker, or to wake up at a time."""
        return await self._write("control", actor, lambda tx: control(tx, order))

    async def pause(self, pause: Pause, actor: str) -> None:
        """Stop workers from claiming runs of a type or a queue. An existing pause is left as it is."""
        await self._write("pause", actor, lambda tx: pauses.pause(tx, pause))

    async def resume(self, kind: PauseKind, name: str, actor: str) -> None:
        """End the pause of a type or a queue."""
        await self._write("resume", actor, lambda tx: pauses.resume(tx, kind, name))

    async def pauses(self) -> builtins.list[Pause]:
        """Every paused type and queue."""
        return await self._read("pauses", pauses.pauses)

    async def unblock(
        self, run_ids: Sequence[str] | None, types: Sequence[str], reasons: Sequence[str], actor: str
    ) -> int:
        """Make blocked runs pending again: the named ones, or all of these types."""
        return await self._write("unblock", actor, lambda tx: unblock(tx, run_ids, types, reasons))

    async def reopen(self, run_id: str, generation: int, deadline: int | None, actor: str) -> ReopenOutcome:
        """Continue a failed or cancelled run as its next generation."""
        return await self._write("reopen", actor, lambda tx: reopen(tx, run_id, generation, deadline))

    async def recover(self, run_id: str, token: int, actor: str) -> bool:
        """Reset the attempts of a run last seen with that token. False if none were used, or a worker holds it."""
        return await self._write("recover", actor, lambda tx: recover(tx, run_id, token))

    async def delete_events(self, upto: int, before: int, actor: str) -> None:
        """Delete the events up to a number that are older than a time."""
        await self._write("delete_events", actor, lambda tx: delete_events(tx, upto, before))

    async def fork(self, fork: Fork, actor: str) -> CreatedRun:
        """Create a run with a history, unless its id exists."""
        return await self._write("fork", actor, lambda tx: fork_run(tx, fork))

    async def schedule(self, schedule_id: str) -> Schedule | None:
        """One schedule."""
        return await self._read("schedule", lambda tx: schedules.schedule(tx, schedule_id))

    async def schedules(self, after: str, limit: int) -> builtins.list[Schedule]:
        """Schedules in the order of their ids, after one."""
        return await self._read("schedules", lambda tx: schedules.schedules(tx, after, limit))

    async def save_schedule(
        self, schedule: Schedule, version: int, write_id: str, event: str, actor: str
    ) -> SaveOutcome:
        """Create a schedule (version 0), or change one that still has the given version."""
        return await self._write(
            "save_schedule", actor, lambda tx: schedules.save(tx, schedule, version, write_id, event)
        )

    async def delete_schedule(self, schedule_id: str, actor: str) -> None:
        """Delete a schedule; its runs continue."""
        await self._write("delete_schedule", actor, lambda tx: schedules.delete(tx, schedule_id))

    async def trigger(self, schedule_id: str, slots: Sequence[int], key: str, actor: str) -> builtins.list[str] | None:
        """Start the runs of some fire times, or, without any, one run under a key; returns their ids."""
        return await self._write("trigger", actor, lambda tx: schedules.trigger(tx, schedule_id, slots, key))

    async def fire(self, limit: int, actor: str) -> FiringResult:
        """Start one run for each fire time that is due, of up to `limit` schedules."""
        return await self._write("fire", actor, lambda tx: schedules.fire(tx, limit))

    async def look(self, pairs: Sequence[tuple[str, str]], limit: int, *, newest: bool = False) -> AdmissionPreview:
        """Preview of admission: ready runs that need permits, and when the next waiting run may pass."""
        return await self._read("look", lambda tx: waitlist.look(tx, pairs, limit, newest=newest))

    async def admit(self, request: AdmissionRequest) -> AdmissionResult:
        """Grant permits to runs and claim them; put the others on waitlists."""
        asking = [*(one.gating for one in request.arrivals), *(one.gating for one in request.steps)]
        wanted = {one.gate: one.bounds for gating in asking for one in gating.passes}
        if wanted:
            await self._make(await self._read("missing_gates", lambda tx: gates.missing_gates(tx, wanted)))
        admitted, missing = await self._write(
            "admit", request.worker, lambda tx: admit(tx, request, self._system.entropy)
        )
        await self._make(missing)
        return replace(admitted, next_due=admitted.now) if missing else admitted

    async def _make(self, missing: Mapping[str, LimitBounds]) -> None:
        if missing:
            await self._write("make_gates", "", partial(gates.make_gates, wanted=missing))

    async def standing(self, run_id: str) -> WaitlistPosition | None:
        """Position of a run on a waitlist; None if it is on none."""
        return await self._read("standing", lambda tx: waitlist.standing(tx, run_id))

    async def lined(self, types: Sequence[str]) -> set[str]:
        """The types that have a run on a waitlist."""
        return await self._read("lined", lambda tx: gates.lined(tx, types))

    async def recheck_gates(self, actor: str) -> None:
        """Re-examine every gate that waits for room, in case a holder died without releasing its permit."""
        await self._write("recheck_gates", actor, gates.recheck_gates)

    async def delete_idle_gates(self, limit: int, actor: str) -> int:
        """Delete up to `limit` gates of unused keys; returns how many."""
        return await self._write("delete_idle_gates", actor, lambda tx: gates.delete_idle_gates(tx, limit))

    async def set_bounds(self, gate: str, bounds: LimitBounds | None, actor: str) -> None:
        """Override the limit declared in code, at once and for all workers; None removes the override."""
        await self._write("set_bounds", actor, lambda tx: gates.set_bounds(tx, gate, bounds))

    async def set_breaker(self, gate: str, circuit: Circuit | None, actor: str) -> None:
        """Hold a breaker open or closed; None returns it to its rule with empty counters."""
        await self._write("set_breaker", actor, lambda tx: breakers.set_breaker(tx, gate, circuit))

    async def gates(self, after: str, limit: int) -> builtins.list[LimitInfo]:
        """Gates in the order of their names, after one."""
        return await self._read("gates", lambda tx: gates.gates(tx, after, limit))

    async def acquire_lock(self, name: str, owner: str, nonce: str, ttl: int, actor: str) -> LockGrant:
        """Acquire a free lock for `ttl` microseconds; the nonce identifies the holder."""
        await self.now()
        return await self._write("acquire_lock", actor, lambda tx: locks.acquire(tx, name, owner, nonce, ttl))

    async def extend_lock(self, name: str, nonce: str, ttl: int, actor: str) -> LockInfo | None:
        """Hold a lock for `ttl` microseconds from now; None if it is no longer held under that nonce."""
        await self.now()
        return await self._write("extend_lock", actor, lambda tx: locks.extend(tx, name, nonce, ttl))

    async def release_lock(self, name: str, token: int, nonce: str | None, actor: str) -> bool:
        """Release a lock held under that token and nonce."""
        return await self._write("release_lock", actor, lambda tx: locks.release(tx, name, token, nonce))

    async def succeed(self, names: Sequence[str], actor: str) -> int:
        """Start the next run of each singleton whose current run has ended; returns how many."""
        return await self._write("succeed", actor, lambda tx: singletons.succeed(tx, names))

    async def locks(self, after: str, limit: int, name: str | None = None) -> builtins.list[LockInfo]:
        """Held locks in the order of their names, after one; or only the lock of a name."""
        return await self._read("locks", lambda tx: locks.locks(tx, after, limit, name))

    async def set_watermark(self, watermark: Watermark, actor: str) -> None:
        """Set the watermark of a queue or a type, replacing any earlier one."""
        await self._write("set_watermark", actor, lambda tx: watermarks.set_watermark(tx, watermark))

    async def remove_watermark(self, kind: str, name: str, actor: str) -> None:
        """Remove the watermark of a queue or a type."""
        await self._write("remove_watermark", actor, lambda tx: watermarks.remove_watermark(tx, kind, name))

    async def watermarks(self) -> builtins.list[Watermark]:
        """Every watermark."""
        return await self._read("watermarks", watermarks.watermarks)

    async def depth(self, kind: str, name: str, limit: int) -> int:
        """Number of ready runs that wait, in a queue or of a type, counted up to `limit`."""
        return await self._read("depth", lambda tx: watermarks.depth(tx, kind, name, limit))

    async def dead(self, filter: DeadLetterFilter, limit: int, cursor: str | None) -> DeadLetterPage:
        """Dead letters, latest run first. Raises `InvalidCursor`."""
        return await self._read("dead", lambda tx: dead_letters.dead(tx, filter, limit, cursor))

    async def letter(self, run_id: str) -> DeadLetter | None:
        """One dead letter; None if the run does not exist or is not dead."""
        return await self._read("letter", lambda tx: dead_letters.letter(tx, run_id))

    async def requeue(self, order: Requeue, actor: str) -> RequeueOutcome:
        """Continue a dead or cancelled run; a finished one in its next generation."""
        return await self._write("requeue", actor, lambda tx: dead_letters.requeue(tx, order))

    async def delete(self, run_id: str, reason: str, actor: str, *, discard: bool = False) -> DeleteOutcome:
        """Hide a finished run from listings. With `discard`, only a dead letter; a blocked one is cancelled first."""
        return await self._write("delete", actor, lambda tx: dead_letters.delete(tx, run_id, reason, discard=discard))

    async def undelete(self, run_id: str, actor: str) -> DeleteOutcome:
        """Restore a deleted run."""
        return await self._write("undelete", actor, lambda tx: dead_letters.undelete(tx, run_id))

    async def prune(self, what: PruneRequest, limit: int, cursor: str | None, actor: str) -> PruneResult:
        """Permanently delete finished runs and all their data, one batch that examines `limit` runs."""
        return await self._write("prune", actor, lambda tx: prune(tx, what, limit, cursor))

    async def take(self, request: ClaimByIdRequest) -> ClaimByIdResult:
        """Claim one run by its id, if it is ready and free. Counts as a claim, and blocks a poison run."""
        return await self._write("take", request.worker, lambda tx: claim_by_id(tx, request, self._system.entropy))

    async def due(self, types: Sequence[str], queues: Sequence[str], limit: int) -> builtins.list[str]:
        """Up to `limit` runs that could be worked on now, longest waiting first, without paused ones."""
        return await self._read("due", lambda tx: due(tx, types, queues, limit))

    async def register(self, worker: WorkerInfo, serves: Sequence[TypeInfo] = ()) -> None:
        """Register a worker, and record the types that it serves."""

        async def body(tx: Transaction) -> None:
            await workers.enlist(tx, serves)
            await workers.register(tx, worker)

        await self._write("register", worker.id, body)

    async def heartbeat(self, worker_id: str) -> bool:
        """Renew the worker's row. False: it was declared dead and holds no runs any more."""
        return await self._write("heartbeat", worker_id, lambda tx: workers.heartbeat(tx, worker_id))

    async def report_health(self, worker_id: str, errors: int, problem: str) -> None:
        """Store the error count and the latest error of the worker's background loops, for `workers`."""
        await self._write("report_health", worker_id, lambda tx: workers.report_health(tx, worker_id, errors, problem))

    async def retire(self, worker_id: str) -> None:
        """End a worker's registration and release the runs that it still holds."""
        await self._write("retire", worker_id, lambda tx: workers.retire(tx, worker_id))

    async def sweep(self, limit: int) -> SweepResult:
        """Declare overdue workers dead, release their runs (raising the tokens) and fail runs past their deadline."""
        return await self._write("sweep", "sweep", lambda tx: workers.sweep(tx, limit))

    async def workers(self) -> builtins.list[WorkerInfo]:
        """Every worker that is alive or was recently."""
        return await self._read("workers", workers.workers)

    async def types(self) -> builtins.list[TypeInfo]:
        """Every registered type, and if it is enabled."""
        return await self._read("types", workers.types)

    async def holdings(self, worker_id: str) -> builtins.list[Lease]:
        """Leases that the database assigns to the worker."""
        return await self._read("holdings", lambda tx: workers.holdings(tx, worker_id))

    async def load(self, run_ids: Sequence[str]) -> builtins.list[LoadedRun]:
        """Histories and unread inboxes of runs, in one read."""
        return await self._read("load", lambda tx: reads.load(tx, run_ids, self.inbox_page))

    async def unread(self, run_ids: Sequence[str]) -> builtins.list[Message]:
        """Unread inbox entries of these runs, in one read."""
        return await self._read("unread", lambda tx: reads.unread(tx, run_ids, self.inbox_page))

    async def marked(self, worker_id: str) -> builtins.list[Message]:
        """Unread inbox entries of the worker's running runs that were written to from outside."""
        return await self._read("marked", lambda tx: reads.marked(tx, worker_id, self.inbox_page))

    async def transact(self, step: TransactionStep) -> TurnOutcome:
        """Run a user's function and write the record of its result in one transaction: APPLIED or LOST."""
        self._check_open()
        return await run_transaction_step(step, self._home, self.lend, self._system.crash_point, self._limit())

    def _limit(self) -> str:
        """First statement of a transaction step: bounds it, so that it does not outlive its worker's lease."""
        return ""

    async def recorded(self, turn: Turn, actor: str) -> TurnOutcome:
        """Outcome of a turn with one record: APPLIED, LOST, or BUSY if it is missing and may be tried again."""
        return await self._write("recorded", actor, lambda tx: recorded(tx, turn))

    async def migrations(self) -> builtins.list[MigrationStatus]:
        """Each migration and when it was applied; works on a store that is not open, and does not open it."""
        await self._connect()
        try:
            return await self._read("status", lambda tx: migrations.status(tx, self._dialect, self._tables))
        finally:
            await self.close()

    async def remove(self) -> None:
        """Drop the tables and views of this prefix, which must not be the usual one. For tools that made them."""
        await self._write("remove", "", lambda tx: migrations.drop_tables(tx, self._dialect, self._tables))

    async def _migrate(self, tx: Transaction) -> None:
        await migrations.migrate(tx, self._dialect)

    async def _pending(self, tx: Transaction) -> bool:
        return bool(await migrations.pending(tx, self._dialect, self._tables))

    @property
    def _home(self) -> StoreDatabase:
        return StoreDatabase(
            dialect=self._dialect, tables=self._tables, where=self.where, clock=self.clock, audit=self.audit
        )

    @property
    def _has_observers(self) -> bool:
        return bool(self._observers)

    def _done(self, tx: TransactionNotices) -> None:
        """A transaction has become durable: pass on what it gathered."""
        if changes := tx.changes:
            self._tell(changes)
        if tx.observed:
            self._call(self._observers, tx.observed)

    def _tell(self, change: Change) -> None:
        self._call(self._listeners, change)

    def _call(self, listeners: Iterable[Callable[[T], object]], news: T) -> None:
        for listener in listeners:
            try:
                listener(news)
            except Exception:
                _log.exception("A listener of the store failed; the write itself is done.")

    def _check_open(self) -> None:
        if self._process == os.getpid():
            return
        if self._process:
            raise EngineClosed(
                "This store was opened by the process that this one was forked from. Open one after the fork."
            )
        raise EngineClosed("The store is closed. Open it first, or create another one.")
