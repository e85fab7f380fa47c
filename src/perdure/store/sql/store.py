"""Base of the stores on all SQL databases: the verbs, each as one transaction over a `Transaction`.

Each database adds how to connect, how to run transactions that write and that read, and how to claim and to commit,
which are spelled out in full for each database. A forked process must open a store of its own.
"""

from __future__ import annotations

import builtins
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from functools import partial
from typing import Any, TypeVar

from msgspec.structs import replace

from perdure.core.access import NewToken, StoredToken, TokenInfo
from perdure.core.audit import Audit, Event, EventFilter
from perdure.core.codec.failure import Failure
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
from perdure.core.system import System
from perdure.core.time.schedule import FiringResult, SaveOutcome, Schedule
from perdure.errors import EngineClosed, SchemaMismatch
from perdure.store import migrations
from perdure.store.contract import SCAN, Change, EventObserver, Listener
from perdure.store.migrations import MigrationStatus
from perdure.store.sql import (
    documents,
    graph_checkpoints,
    locks,
    pauses,
    reads,
    schedules,
    singletons,
    tokens,
    watermarks,
    workers,
)
from perdure.store.sql.audit import delete_events, events_page
from perdure.store.sql.dialect import Body, Dialect, Row, Transaction, TransactionNotices
from perdure.store.sql.limits import breakers, gates, waitlist
from perdure.store.sql.limits.admit_runs import admit
from perdure.store.sql.limits.gates import valid_permits, waiting_runs
from perdure.store.sql.listing import count_runs, list_runs, run_times
from perdure.store.sql.packing import pack
from perdure.store.sql.runs import dead_letters
from perdure.store.sql.runs.attempt_reports import report_attempt
from perdure.store.sql.runs.attributes import read_attributes
from perdure.store.sql.runs.claim import claim_by_id, ready_run_ids
from perdure.store.sql.runs.create import create
from perdure.store.sql.runs.events import emit_event
from perdure.store.sql.runs.inbox import broadcast, cancel, send
from perdure.store.sql.runs.outputs import keep_log, latest_outputs, outputs
from perdure.store.sql.runs.pause_and_evict import order_run, set_priority
from perdure.store.sql.runs.pinning import pin, unpin
from perdure.store.sql.runs.pruning import prune
from perdure.store.sql.runs.reopen import fork as fork_run
from perdure.store.sql.runs.reopen import retry, unblock
from perdure.store.sql.runs.set_aside_messages import decide_message
from perdure.store.sql.runs.terminate import terminate
from perdure.store.sql.turn import turn_outcome
from perdure.store.user_connections.transaction import StoreDatabase, join_transaction
from perdure.store.user_connections.transaction_step import TransactionStep, run_transaction_step

T = TypeVar("T")
#: Answer of a verb, to be awaited.
Answer = Coroutine[Any, Any, T]
Trace = Callable[[str], object]

_log = logging.getLogger("perdure.store")


class SqlStore(ABC):
    """The verbs of `Store` that are the same on every database."""

    #: Longest wait for the first answer of a server; None: as long as the attempts to connect take.
    first_answer_seconds: float | None = None

    poll_interval: float
    lanes: int
    inbox_page = 1000
    exclusive = False
    announces = False
    blocks = False
    #: What the database is called in messages.
    where: str
    #: Its file, on SQLite; None: in memory.
    _file: str | None = ""
    _system: System

    def __init__(self, dialect: Dialect, tables: str, clock: Callable[[], int], *, migrate: bool, audit: Audit) -> None:
        #: `tables` is how the names of the tables begin, with their schema if they have one.
        self._dialect = dialect
        self._tables = tables
        #: The database's time as last measured, advanced by the monotonic clock. Never goes back. For durable times.
        self.clock = clock
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
                    raise SchemaMismatch(f"{self.where} lacks tables of Perdure; run `perdure migrate` once")
                await self._write("migrate", "", self._migrate)
        except BaseException:
            await self.close()
            raise

    @abstractmethod
    async def close(self) -> None:
        """Close every connection; afterwards each verb raises `EngineClosed`."""

    @abstractmethod
    async def poll_changes(self, *, watch: bool = True) -> bool:
        """True if another connection may have written since the last call; all listeners are then called."""

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
    def _write(self, verb: str, actor: str, body: Body[T]) -> Answer[T]:
        """Run a verb that writes, as one transaction."""

    @abstractmethod
    def _read(self, verb: str, body: Body[T]) -> Answer[T]:
        """Run a verb that only reads."""

    @property
    def is_notified(self) -> bool:
        """True while the changes of other processes are announced to this one."""
        return False

    def announce(self, change: Change) -> None:
        """Announce something to other processes that no commit announces; they poll, if nothing else is written."""
        _log.debug("%r is left to be polled", change)

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call the listener after changes made through this object or found by `poll_changes`."""
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
        return await self._write("create", actor, partial(create, runs=runs, all_or_none=all_or_none))

    async def get(self, run_id: str) -> Run | None:
        """One run."""
        return await self._read("get", partial(reads.get, run_id=run_id))

    async def get_many(self, run_ids: Sequence[str]) -> builtins.list[Run]:
        """The existing ones of these runs, in no particular order."""
        return await self._read("get_many", partial(reads.get_many, run_ids=run_ids))

    async def list(self, filter: RunFilter, limit: int, cursor: str | None, scan: int = SCAN) -> RunPage:
        """A page of runs. Raises `InvalidCursor`."""
        return await self._read(
            "list",
            partial(list_runs, filter=filter, limit=limit, cursor=cursor, scan=scan, dialect=self._dialect),
        )

    async def count(self, filter: RunFilter, by: CountBy, most: int) -> builtins.list[RunGroup]:
        """Numbers of runs by groups."""
        return await self._read("count", partial(count_runs, filter=filter, by=by, most=most, dialect=self._dialect))

    async def run_times(self, created_after: int, created_before: int, limit: int) -> builtins.list[RunTimes]:
        """Types, statuses and times of the latest runs that were created between two times."""
        read = partial(run_times, created_after=created_after, created_before=created_before, limit=limit)
        return await self._read("run_times", read)

    async def attributes(self, run_ids: Sequence[str]) -> dict[str, dict[str, AttributeValue]]:
        """Attributes of runs that have any, by run and name."""
        return await self._read("attributes", partial(read_attributes, run_ids=run_ids))

    async def history(
        self, run_id: str, after: int = -1, limit: int = 0, *, brief: bool = False
    ) -> builtins.list[Record]:
        """The records of a run past `after`, in order; at most `limit`, or all of them."""
        return await self._read("history", lambda tx: reads.history(tx, run_id, after, limit, brief=brief))

    async def records(self, run_id: str, numbers: Sequence[int]) -> builtins.list[Record]:
        """The existing ones of these records of a run, in order."""
        return await self._read("records", partial(reads.records, run_id=run_id, numbers=numbers))

    async def snapshot(
        self, run_id: str, after: int = -1, kinds: Sequence[OutputKind] = (), children: int = 0
    ) -> RunSnapshot | None:
        """A run, what it waits for, its records past `after`, its outputs of these kinds and some of its children."""
        read = partial(reads.snapshot, run_id=run_id, after=after, kinds=kinds, children=children)
        return await self._read("snapshot", read)

    async def waits(self, run_id: str) -> RunWaits | None:
        """Names of what a run waited for when it was last parked; None if it named nothing."""
        return await self._read("waits", partial(reads.waits, run_id=run_id))

    async def updated_at(self, run_ids: Sequence[str]) -> dict[str, int]:
        """Time of the last change of each of these runs that exists."""
        return await self._read("updated_at", partial(reads.updated_at, run_ids=run_ids))

    async def inbox(self, run_id: str, after: int, limit: int = 0) -> builtins.list[Message]:
        """The unread inbox entries of a run past `after`, in order; at most `limit`, or all of them."""
        return await self._read("inbox", partial(reads.inbox, run_id=run_id, after=after, limit=limit))

    async def events(self, run_id: str) -> builtins.list[Event]:
        """The audit trail of a run, in order."""
        return await self._read("events", partial(reads.events, run_id=run_id))

    async def events_page(
        self, filter: EventFilter, limit: int, *, before: int | None = None, after: int | None = None
    ) -> builtins.list[Event]:
        """Audit events of all runs: before a number, newest first; or after one, oldest first."""
        return await self._read(
            "events_page", partial(events_page, filter=filter, limit=limit, before=before, after=after)
        )

    async def outputs(
        self, run_id: str, kind: OutputKind, name: str | None, after: int, limit: int, *, before: int | None = None
    ) -> builtins.list[Output]:
        """Outputs of a run past a position (-1: from the first); with `before`, the latest ones before a position."""
        read: Body[builtins.list[Output]] = partial(
            outputs, run_id=run_id, kind=kind, name=name, after=after, limit=limit
        )
        if before is not None:
            read = partial(latest_outputs, run_id=run_id, kind=kind, name=name, after=after, limit=limit, before=before)
        return await self._read("outputs", read)

    async def send(self, messages: Sequence[NewMessage], actor: str) -> builtins.list[SendOutcome]:
        """Put messages into inboxes in one transaction; wake waiting runs and mark running ones."""
        return await self._write("send", actor, partial(send, messages=messages))

    async def broadcast(
        self, topic: str, payload: str | None, key: str, after: str | None, limit: int, actor: str
    ) -> BroadcastResult:
        """Send a message to the next `limit` runs past `after` that subscribe to the topic, in one transaction."""

        async def body(tx: Transaction) -> BroadcastResult:
            return await broadcast(tx, topic, payload, key, after, limit, lambda messages: send(tx, messages))

        return await self._write("broadcast", actor, body)

    async def cancel(self, run_id: str, reason: str, key: str, actor: str) -> SendOutcome:
        """Request a run's cancellation."""
        return await self._write("cancel", actor, partial(cancel, run_id=run_id, reason=reason, key=key))

    async def terminate(self, run_id: str, reason: str, key: str, actor: str, *, undo: bool = False) -> OrderOutcome:
        """End a run as failed, in whatever status it is, without its code."""
        return await self._write("terminate", actor, lambda tx: terminate(tx, run_id, reason, key, undo=undo))

    async def decide_message(
        self, run_id: str, number: int, key: str, payload: str | None, actor: str, *, deliver: bool
    ) -> OrderOutcome:
        """Put a message that the run has set aside into its inbox again, or drop it."""
        return await self._write(
            "decide_message", actor, lambda tx: decide_message(tx, run_id, number, key, payload, deliver=deliver)
        )

    async def emit_event(self, event: NewStickyEvent, actor: str) -> EmitOutcome:
        """Give a sticky event its value, unless it has another one, and tell the runs that wait for it."""
        return await self._write("emit_event", actor, partial(emit_event, event=event))

    async def report_attempt(self, report: AttemptReport, actor: str) -> ReportOutcome:
        """Write a report from outside about an attempt at an activity."""
        return await self._write("report_attempt", actor, lambda tx: report_attempt(tx, report))

    def user_transaction(
        self, connection: object, actor: str, *, locking: bool = True
    ) -> AbstractAsyncContextManager[Transaction]:
        """The transaction that the caller has open on their own connection, for `create` and `send`."""
        return join_transaction(connection, self._home, actor, locking=locking)

    async def order_run(self, order: RunOrder, actor: str) -> OrderOutcome:
        """Order a run to pause, to resume, to move to another worker, or to wake up at a time."""
        return await self._write("order_run", actor, partial(order_run, order=order))

    async def set_priority(self, run_id: str, priority: int, reason: str, actor: str) -> OrderOutcome:
        """Change the priority of a run that has not finished; DONE also if it has that priority."""
        return await self._write(
            "set_priority", actor, partial(set_priority, run_id=run_id, priority=priority, reason=reason)
        )

    async def pin(self, leases: Sequence[Lease], build: str, actor: str) -> builtins.list[bool]:
        """Pin held runs to a build; False: the lease was lost."""
        return await self._write("pin", actor, partial(pin, leases=leases, build=build))

    async def unpin(self, run_id: str, reason: str, actor: str) -> OrderOutcome:
        """Let workers of every build claim a run that has not finished. DONE also if it is not pinned."""
        return await self._write("unpin", actor, partial(unpin, run_id=run_id, reason=reason))

    async def pause(self, pause: Pause, actor: str) -> None:
        """Stop workers from claiming runs of a type or a queue. An existing pause is left as it is."""
        return await self._write("pause", actor, partial(pauses.pause, pause=pause))

    async def resume(self, kind: PauseKind, name: str, actor: str, reason: str = "") -> None:
        """End the pause of a type or a queue."""
        return await self._write("resume", actor, partial(pauses.resume, kind=kind, name=name, reason=reason))

    async def pauses(self) -> builtins.list[Pause]:
        """Every paused type and queue."""
        return await self._read("pauses", pauses.pauses)

    async def unblock(self, types: Sequence[str], reasons: Sequence[str], actor: str) -> int:
        """Make all runs of these types that are blocked for these reasons pending again, for new code; how many."""
        return await self._write("unblock", actor, partial(unblock, types=types, reasons=reasons))

    async def retry(self, request: RetryRequest, actor: str) -> RetryResult:
        """Let one run go again, as its state allows; see `RetryCause`. A repetition changes nothing."""
        return await self._write("retry", actor, partial(retry, request=request))

    async def delete_events(self, upto: int, before: int, actor: str) -> None:
        """Delete the events up to a number that are older than a time."""
        return await self._write("delete_events", actor, partial(delete_events, upto=upto, before=before))

    async def fork(self, fork: Fork, actor: str) -> CreatedRun:
        """Create a run with a history, unless its id exists."""
        return await self._write("fork", actor, partial(fork_run, fork=fork))

    async def schedule(self, schedule_id: str) -> Schedule | None:
        """One schedule."""
        return await self._read("schedule", partial(schedules.schedule, schedule_id=schedule_id))

    async def schedules(self, after: str, limit: int) -> builtins.list[Schedule]:
        """Schedules in the order of their ids, after one."""
        return await self._read("schedules", partial(schedules.schedules, after=after, limit=limit))

    async def save_schedule(
        self, schedule: Schedule, version: int, write_id: str, event: str, actor: str, reason: str = ""
    ) -> SaveOutcome:
        """Create a schedule (version 0), or change one that still has the given version."""
        return await self._write(
            "save_schedule",
            actor,
            partial(schedules.save, schedule=schedule, version=version, write_id=write_id, event=event, reason=reason),
        )

    async def delete_schedule(self, schedule_id: str, actor: str, reason: str = "") -> None:
        """Delete a schedule; its runs continue."""
        return await self._write(
            "delete_schedule", actor, partial(schedules.delete, schedule_id=schedule_id, reason=reason)
        )

    async def trigger(
        self, schedule_id: str, fire_times: Sequence[int], key: str, actor: str, reason: str = ""
    ) -> builtins.list[str] | None:
        """Start the runs of some fire times, or, without any, one run under a key; returns their ids."""
        return await self._write(
            "trigger",
            actor,
            partial(schedules.trigger, schedule_id=schedule_id, fire_times=fire_times, key=key, reason=reason),
        )

    async def list_fires(self, schedule_id: str, limit: int) -> builtins.list[Run]:
        """The runs of the latest fire times of a schedule, latest first; without those that were started by hand."""
        return await self._read("list_fires", partial(schedules.list_fires, schedule_id=schedule_id, limit=limit))

    async def fire_schedules(self, limit: int, actor: str) -> FiringResult:
        """Start one run for each fire time that is due, of up to `limit` schedules."""
        return await self._write("fire_schedules", actor, partial(schedules.fire, limit=limit))

    async def preview_admission(
        self, pairs: Sequence[tuple[str, str]], limit: int, *, newest: bool = False
    ) -> AdmissionPreview:
        """Preview of admission: ready runs that need permits, and when the next waiting run may pass."""
        return await self._read(
            "preview_admission", partial(waitlist.preview_admission, pairs=pairs, limit=limit, newest=newest)
        )

    async def admit(self, request: AdmissionRequest) -> AdmissionResult:
        """Grant permits to runs and claim them; put the others on waitlists."""
        asking = [*(one.gating for one in request.arrivals), *(one.gating for one in request.steps)]
        wanted = {one.gate: one.bounds for gating in asking for one in gating.passes}
        if wanted:
            await self._make(await self._read("missing_gates", partial(gates.missing_gates, wanted=wanted)))
        admitted, missing = await self._write(
            "admit", request.worker, partial(admit, request=request, entropy=self._system.entropy)
        )
        await self._make(missing)
        return replace(admitted, next_due=admitted.now) if missing else admitted

    async def _make(self, missing: Mapping[str, LimitBounds]) -> None:
        if missing:
            await self._write("make_gates", "", partial(gates.make_gates, wanted=missing))

    async def waitlist_position(self, run_id: str) -> WaitlistPosition | None:
        """Position of a run on a waitlist; None if it is on none."""
        return await self._read("waitlist_position", partial(waitlist.waitlist_position, run_id=run_id))

    async def waitlisted_types(self, types: Sequence[str]) -> set[str]:
        """The types that have a run on a waitlist."""
        return await self._read("waitlisted_types", partial(gates.waitlisted_types, types=types))

    async def recheck_gates(self, actor: str) -> None:
        """Re-examine every gate that waits for room, in case a holder died without releasing its permit."""
        return await self._write("recheck_gates", actor, gates.recheck_gates)

    async def delete_idle_gates(self, limit: int, actor: str) -> int:
        """Delete up to `limit` gates of unused keys; returns how many."""
        return await self._write("delete_idle_gates", actor, partial(gates.delete_idle_gates, limit=limit))

    async def set_bounds(self, gate: str, bounds: LimitBounds | None, actor: str, reason: str = "") -> None:
        """Override the limit declared in code, at once and for all workers; None removes the override."""
        return await self._write(
            "set_bounds", actor, partial(gates.set_bounds, name=gate, bounds=bounds, reason=reason)
        )

    async def set_breaker(self, gate: str, circuit: Circuit | None, actor: str, reason: str = "") -> None:
        """Hold a breaker open or closed; None returns it to its rule with empty counters."""
        work = partial(breakers.set_breaker, name=gate, circuit=circuit, reason=reason)
        return await self._write("set_breaker", actor, work)

    async def permits(self, gates: Sequence[str], limit: int) -> builtins.list[PermitInfo]:
        """Permits of these gates that count, by gate and the oldest first; at most `limit` of all."""
        return await self._read("permits", partial(valid_permits, names=gates, limit=limit))

    async def waiting_runs(self, gates: Sequence[str], limit: int) -> builtins.list[WaitingRun]:
        """Runs on the waitlists of these gates, by gate; at most `limit` of all."""
        return await self._read("waiting_runs", partial(waiting_runs, names=gates, limit=limit))

    async def gates(self, after: str, limit: int) -> builtins.list[LimitInfo]:
        """Gates in the order of their names, after one."""
        return await self._read("gates", partial(gates.gates, after=after, limit=limit))

    async def acquire_lock(self, name: str, owner: str, nonce: str, ttl: int, actor: str) -> LockGrant:
        """Acquire a free lock for `ttl` microseconds; the nonce identifies the holder."""
        await self.now()
        return await self._write(
            "acquire_lock", actor, partial(locks.acquire, name=name, owner=owner, nonce=nonce, ttl=ttl)
        )

    async def extend_lock(self, name: str, nonce: str, ttl: int, actor: str) -> LockInfo | None:
        """Hold a lock for `ttl` microseconds from now; None if it is no longer held under that nonce."""
        await self.now()
        return await self._write("extend_lock", actor, partial(locks.extend, name=name, nonce=nonce, ttl=ttl))

    async def release_lock(self, name: str, token: int, nonce: str | None, actor: str, reason: str = "") -> bool:
        """Release a lock held under that token and nonce."""
        return await self._write(
            "release_lock", actor, partial(locks.release, name=name, token=token, nonce=nonce, reason=reason)
        )

    async def start_successors(self, names: Sequence[str], actor: str) -> int:
        """Start the next run of each singleton whose current run has ended; returns how many."""
        return await self._write("start_successors", actor, partial(singletons.start_successors, names=names))

    async def locks(self, after: str, limit: int, name: str | None = None) -> builtins.list[LockInfo]:
        """Held locks in the order of their names, after one; or only the lock of a name."""
        return await self._read("locks", partial(locks.locks, after=after, limit=limit, name=name))

    async def set_watermark(self, watermark: Watermark, actor: str, reason: str = "") -> None:
        """Set the watermark of a queue or a type, replacing any earlier one."""
        work = partial(watermarks.set_watermark, watermark=watermark, reason=reason)
        return await self._write("set_watermark", actor, work)

    async def remove_watermark(self, kind: str, name: str, actor: str, reason: str = "") -> None:
        """Remove the watermark of a queue or a type."""
        work = partial(watermarks.remove_watermark, kind=kind, name=name, reason=reason)
        return await self._write("remove_watermark", actor, work)

    async def watermarks(self) -> builtins.list[Watermark]:
        """Every watermark."""
        return await self._read("watermarks", watermarks.watermarks)

    async def depth(self, kind: str, name: str, limit: int) -> int:
        """Number of ready runs that wait, in a queue or of a type, counted up to `limit`."""
        return await self._read("depth", partial(watermarks.depth, kind=kind, name=name, limit=limit))

    async def backlog(self, queue: str, limit: int) -> QueueBacklog:
        """Number of ready runs that wait in a queue, and since when the oldest of them is ready."""
        return await self._read("backlog", partial(watermarks.backlog, queue=queue, limit=limit))

    async def create_token(self, new: NewToken, actor: str) -> TokenInfo | None:
        """Store a token; None if another valid token has its name."""
        return await self._write("create_token", actor, partial(tokens.create_token, new=new))

    async def revoke_token(self, name: str, created_at: int, actor: str) -> TokenInfo | None:
        """Revoke the token of that name that was created then; None if there is none."""
        return await self._write("revoke_token", actor, partial(tokens.revoke_token, name=name, created_at=created_at))

    async def touch_tokens(self, uses: Sequence[tuple[str, int]], actor: str) -> None:
        """Store times of use, by digest. Never makes one earlier."""
        return await self._write("touch_tokens", actor, partial(tokens.touch_tokens, uses=uses))

    async def token(self, digest: str) -> StoredToken | None:
        """The token of a digest, valid or not."""
        return await self._read("token", partial(tokens.token, digest=digest))

    async def tokens(self, after: str, limit: int, name: str | None = None) -> builtins.list[TokenInfo]:
        """Tokens in the order of their names, after one; or only the token of a name."""
        return await self._read("tokens", partial(tokens.tokens, after=after, limit=limit, name=name))

    async def list_dead_letters(self, filter: DeadLetterFilter, limit: int, cursor: str | None) -> DeadLetterPage:
        """Dead letters, latest run first. Raises `InvalidCursor`."""
        return await self._read(
            "list_dead_letters", partial(dead_letters.list_dead_letters, filter=filter, limit=limit, cursor=cursor)
        )

    async def get_dead_letter(self, run_id: str) -> DeadLetter | None:
        """One dead letter; None if the run does not exist or is not dead."""
        return await self._read("get_dead_letter", partial(dead_letters.get_dead_letter, run_id=run_id))

    async def delete(self, run_id: str, reason: str, actor: str, *, discard: bool = False) -> DeleteOutcome:
        """Hide a finished run from listings. With `discard`, only a dead letter; a blocked one is cancelled first."""
        return await self._write(
            "delete", actor, partial(dead_letters.delete, run_id=run_id, reason=reason, discard=discard)
        )

    async def undelete(self, run_id: str, actor: str) -> DeleteOutcome:
        """Restore a deleted run."""
        return await self._write("undelete", actor, partial(dead_letters.undelete, run_id=run_id))

    async def prune(self, what: PruneRequest, limit: int, cursor: str | None, actor: str) -> PruneResult:
        """Permanently delete finished runs and all their data, one batch that examines `limit` runs."""
        return await self._write("prune", actor, partial(prune, prune=what, limit=limit, cursor=cursor))

    async def claim_by_id(self, request: ClaimByIdRequest) -> ClaimByIdResult:
        """Claim one run by its id, if it is ready and free. Counts as a claim, and blocks a poison run."""
        return await self._write(
            "claim_by_id", request.worker, partial(claim_by_id, request=request, entropy=self._system.entropy)
        )

    async def ready_run_ids(self, types: Sequence[str], queues: Sequence[str], limit: int) -> builtins.list[str]:
        """Up to `limit` runs that could be worked on now, longest waiting first, without paused ones."""
        return await self._read("ready_run_ids", partial(ready_run_ids, types=types, queues=queues, limit=limit))

    async def register(self, worker: WorkerInfo, serves: Sequence[TypeInfo] = ()) -> tuple[str, ...]:
        """Register a worker and the types that it serves; return those that belong to another runtime."""

        async def body(tx: Transaction) -> tuple[str, ...]:
            elsewhere = await workers.enlist(tx, serves)
            await workers.register(tx, worker)
            return elsewhere

        return await self._write("register", worker.id, body)

    async def save_sources(self, sources: Sequence[Document], actor: str) -> None:
        """Store the sources of one build that are new or have changed; those of the latest few builds are kept."""
        return await self._write("save_sources", actor, partial(documents.save_sources, sources=sources))

    async def save_report(self, report: Document, actor: str) -> None:
        """Store the report of a deploy check under its id; only the latest few are kept."""
        return await self._write("save_report", actor, partial(documents.save_report, report=report))

    async def documents(self, kind: DocumentKind, name: str | None, limit: int) -> builtins.list[Document]:
        """Sources or reports, of one name if given, latest first."""
        return await self._read("documents", partial(documents.documents, kind=kind, name=name, limit=limit))

    async def save_graph_entries(self, entries: Sequence[GraphEntry], actor: str) -> None:
        """Store checkpoints of graphs and writes."""
        body = partial(graph_checkpoints.save_graph_entries, entries=entries)
        return await self._write("save_graph_entries", actor, body)

    async def copy_graph_thread(self, source: str, target: str, actor: str) -> None:
        """Copy the checkpoints and writes of a thread."""
        body = partial(graph_checkpoints.copy_graph_thread, source=source, target=target)
        return await self._write("copy_graph_thread", actor, body)

    async def delete_graph_entries(self, choice: GraphDeletion, actor: str) -> None:
        """Delete checkpoints of graphs with their writes."""
        body = partial(graph_checkpoints.delete_graph_entries, choice=choice)
        return await self._write("delete_graph_entries", actor, body)

    async def graph_checkpoints(self, query: GraphQuery) -> builtins.list[GraphEntry]:
        """Checkpoints of graphs, the largest id first, with their writes."""
        return await self._read("graph_checkpoints", partial(graph_checkpoints.graph_checkpoints, query=query))

    async def drain(self, worker_id: str, order: DrainOrder, actor: str) -> OrderOutcome:
        """Order a worker to drain; it finds the order with its next heartbeat."""
        return await self._write("drain", actor, partial(workers.drain, worker_id=worker_id, order=order))

    async def heartbeat(self, worker_id: str, running: str | None = None) -> HeartbeatResult:
        """Renew the worker's row. LOST: it was declared dead and holds no runs any more."""
        return await self._write(
            "heartbeat", worker_id, partial(workers.heartbeat, worker_id=worker_id, running=running)
        )

    async def report_health(self, worker_id: str, errors: int, problem: str) -> None:
        """Store the error count and the latest error of the worker's background loops, for `workers`."""
        return await self._write(
            "report_health",
            worker_id,
            partial(workers.report_health, worker_id=worker_id, errors=errors, problem=problem),
        )

    async def retire(self, worker_id: str) -> None:
        """End a worker's registration and release the runs that it still holds."""
        return await self._write("retire", worker_id, partial(workers.retire, worker_id=worker_id))

    async def sweep(self, limit: int) -> SweepResult:
        """Declare overdue workers dead, release their runs (raising the tokens) and fail runs past their deadline."""
        return await self._write("sweep", "sweep", partial(workers.sweep, limit=limit))

    async def workers(self) -> builtins.list[WorkerInfo]:
        """Every worker that is alive or was recently."""
        return await self._read("workers", workers.workers)

    async def types(self) -> builtins.list[TypeInfo]:
        """Every registered type, and if it is enabled."""
        return await self._read("types", workers.types)

    async def leases(self, worker_id: str) -> builtins.list[Lease]:
        """Leases that the database assigns to the worker."""
        return await self._read("leases", partial(workers.leases, worker_id=worker_id))

    async def load(self, run_ids: Sequence[str]) -> builtins.list[LoadedRun]:
        """Histories and unread inboxes of runs, in one read."""
        return await self._read("load", partial(reads.load, run_ids=run_ids, page=self.inbox_page))

    async def unread_messages(self, run_ids: Sequence[str]) -> builtins.list[Message]:
        """Unread inbox entries of these runs, in one read."""
        return await self._read(
            "unread_messages", partial(reads.unread_messages, run_ids=run_ids, page=self.inbox_page)
        )

    async def unread_messages_of_worker(self, worker_id: str) -> builtins.list[Message]:
        """Unread inbox entries of the worker's running runs that were written to from outside."""
        return await self._read(
            "unread_messages_of_worker",
            partial(reads.unread_messages_of_worker, worker_id=worker_id, page=self.inbox_page),
        )

    async def transact(self, step: TransactionStep) -> TurnOutcome:
        """Run a user's function and write the record of its result in one transaction: APPLIED or LOST."""
        self._check_open()
        return await run_transaction_step(step, self._home, self.lend, self._pass_crash_point, self._limit())

    def _limit(self) -> str:
        """First statement of a transaction step: bounds it, so that it does not outlive its worker's lease."""
        return ""

    async def pack(self, lease: Lease, first: int, last: int, actor: str) -> bool:
        """Let few rows hold these records of a held run; False: the lease was lost."""
        return await self._write("pack", actor, partial(pack, lease=lease, first=first, last=last))

    async def keep_log(self, lines: Sequence[tuple[str, NewOutput]], most: int, actor: str) -> None:
        """Add lines to the logs of runs, each of which keeps the latest ones."""
        await self._write("keep_log", actor, partial(keep_log, lines=lines, most=most))

    async def turn_outcome(self, turn: Turn, actor: str) -> TurnOutcome:
        """Outcome of a turn with one record: APPLIED, LOST, or BUSY if it is missing and may be tried again."""
        return await self._write("turn_outcome", actor, partial(turn_outcome, turn=turn))

    async def migrations(self) -> builtins.list[MigrationStatus]:
        """Each migration and when it was applied; works on a store that is not open, and does not open it."""
        await self._connect()
        try:
            return await self._read("status", partial(migrations.status, dialect=self._dialect, prefix=self._tables))
        finally:
            await self.close()

    async def remove(self) -> None:
        """Drop the tables and views of this prefix, which must not be the usual one. For tools that made them."""
        return await self._write(
            "remove", "", partial(migrations.drop_tables, dialect=self._dialect, tables=self._tables)
        )

    async def _migrate(self, tx: Transaction) -> None:
        await migrations.migrate(tx, self._dialect)

    async def _pending(self, tx: Transaction) -> bool:
        return bool(await migrations.pending(tx, self._dialect, self._tables))

    @property
    def _home(self) -> StoreDatabase:
        return StoreDatabase(
            dialect=self._dialect,
            tables=self._tables,
            where=self.where,
            clock=self.clock,
            audit=self.audit,
            file=self._file,
        )

    @property
    def _has_observers(self) -> bool:
        return bool(self._observers)

    def _pass_crash_point(self, name: str) -> None:
        if self._system.crash_point is not None:
            self._system.crash_point(name)

    def _done(self, tx: TransactionNotices) -> None:
        """A transaction has become durable: pass on what it gathered."""
        if tx.announced:
            self._tell(Change(tx.announced))
        if tx.observed:
            self._call(self._observers, tx.observed)
        for run_id, error in tx.buried:
            _log.error("run %s is a dead letter: %s", run_id, Failure.read(error), extra={"run_id": run_id})

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
                "this store was opened by the process that this one was forked from; open one after the fork"
            )
        raise EngineClosed("the store is closed; open it first, or create another one")
