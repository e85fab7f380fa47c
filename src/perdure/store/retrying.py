"""A store that does not give up at once.

Repeats a verb that found the database unavailable, with the same arguments, until it succeeds or the bound is reached. Every
verb recognises its own repetition, so the caller cannot tell how often it was tried.
"""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

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
from perdure.errors import StoreUnavailable
from perdure.store.contract import EventObserver, Listener, Store
from perdure.store.sql.dialect import Transaction
from perdure.store.user_connections.transaction_step import TransactionStep

T = TypeVar("T")

_FIRST_DELAY = 0.05
_LONGEST_DELAY = 2.0
_MARGIN = 0.25


class Retrying:
    """The verbs of `Store`, repeated while the database is unavailable, for `bound_seconds` at most.

    A `strict` bound holds for a server that does not answer at all, too: the verb is given up, whatever becomes of it there.
    """

    def __init__(self, store: Store, system: System, bound_seconds: float = 30.0, *, strict: bool = False) -> None:
        self.poll_interval = store.poll_interval
        self.lanes = store.lanes
        self.inbox_page = store.inbox_page
        self.exclusive, self.blocks = store.exclusive, store.blocks
        self._store = store
        self._system = system
        #: For how many seconds a verb is repeated.
        self.bound = bound_seconds
        # SQLite answers when its file is free, which has a bound of its own.
        self._strict = strict and not store.exclusive

    async def open(self) -> None:
        """As the store, once: what cannot be opened at the start is rather a mistake than an outage."""
        await self._store.open()

    async def close(self) -> None:
        """As the store."""
        await self._store.close()

    @property
    def audit(self) -> Audit:
        """As the store."""
        return self._store.audit

    @audit.setter
    def audit(self, level: Audit) -> None:
        self._store.audit = level

    def observe_events(self, observer: EventObserver) -> Callable[[], None]:
        """As the store."""
        return self._store.observe_events(observer)

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """As the store."""
        return self._store.subscribe(listener)

    async def changed(self) -> bool:
        """As the store."""
        return await self._again(self._store.changed)

    async def now(self) -> int:
        """As the store."""
        return await self._again(self._store.now)

    def clock(self) -> int:
        """As the store."""
        return self._store.clock()

    async def create(
        self, runs: Sequence[NewRun], actor: str, *, all_or_none: bool = False
    ) -> builtins.list[CreatedRun]:
        """As the store."""
        return await self._again(lambda: self._store.create(runs, actor, all_or_none=all_or_none))

    async def get(self, run_id: str) -> Run | None:
        """As the store."""
        return await self._again(lambda: self._store.get(run_id))

    async def get_many(self, run_ids: Sequence[str]) -> builtins.list[Run]:
        """As the store."""
        return await self._again(lambda: self._store.get_many(run_ids))

    async def list(self, filter: RunFilter, limit: int, cursor: str | None) -> RunPage:
        """As the store."""
        return await self._again(lambda: self._store.list(filter, limit, cursor))

    async def history(self, run_id: str) -> builtins.list[Record]:
        """As the store."""
        return await self._again(lambda: self._store.history(run_id))

    async def inbox(self, run_id: str, after: int, limit: int = 0) -> builtins.list[Message]:
        """As the store."""
        return await self._again(lambda: self._store.inbox(run_id, after, limit))

    async def events(self, run_id: str) -> builtins.list[Event]:
        """As the store."""
        return await self._again(lambda: self._store.events(run_id))

    async def events_page(
        self, filter: EventFilter, limit: int, *, before: int | None = None, after: int | None = None
    ) -> builtins.list[Event]:
        """As the store."""
        return await self._again(lambda: self._store.events_page(filter, limit, before=before, after=after))

    async def outputs(
        self, run_id: str, kind: OutputKind, name: str | None, after: int, limit: int
    ) -> builtins.list[Output]:
        """As the store."""
        return await self._again(lambda: self._store.outputs(run_id, kind, name, after, limit))

    async def send(self, messages: Sequence[NewMessage], actor: str) -> builtins.list[SendOutcome]:
        """As the store."""
        return await self._again(lambda: self._store.send(messages, actor))

    async def broadcast(
        self, topic: str, payload: str | None, key: str, after: str | None, limit: int, actor: str
    ) -> BroadcastResult:
        """As the store."""
        return await self._again(lambda: self._store.broadcast(topic, payload, key, after, limit, actor))

    async def cancel(self, run_id: str, reason: str, key: str, actor: str) -> SendOutcome:
        """As the store."""
        return await self._again(lambda: self._store.cancel(run_id, reason, key, actor))

    def borrowed(
        self, connection: object, actor: str, *, locking: bool = True
    ) -> AbstractAsyncContextManager[Transaction]:
        """As the store: a transaction of somebody else's is theirs to repeat."""
        return self._store.borrowed(connection, actor, locking=locking)

    async def control(self, order: RunOrder, actor: str) -> OrderOutcome:
        """As the store."""
        return await self._again(lambda: self._store.control(order, actor))

    async def pause(self, pause: Pause, actor: str) -> None:
        """As the store."""
        await self._again(lambda: self._store.pause(pause, actor))

    async def resume(self, kind: PauseKind, name: str, actor: str) -> None:
        """As the store."""
        await self._again(lambda: self._store.resume(kind, name, actor))

    async def pauses(self) -> builtins.list[Pause]:
        """As the store."""
        return await self._again(self._store.pauses)

    async def unblock(
        self, run_ids: Sequence[str] | None, types: Sequence[str], reasons: Sequence[str], actor: str
    ) -> int:
        """As the store."""
        return await self._again(lambda: self._store.unblock(run_ids, types, reasons, actor))

    async def reopen(self, run_id: str, generation: int, deadline: int | None, actor: str) -> ReopenOutcome:
        """As the store."""
        return await self._again(lambda: self._store.reopen(run_id, generation, deadline, actor))

    async def recover(self, run_id: str, token: int, actor: str) -> bool:
        """As the store."""
        return await self._again(lambda: self._store.recover(run_id, token, actor))

    async def delete_events(self, upto: int, before: int, actor: str) -> None:
        """As the store."""
        await self._again(lambda: self._store.delete_events(upto, before, actor))

    async def fork(self, fork: Fork, actor: str) -> CreatedRun:
        """As the store."""
        return await self._again(lambda: self._store.fork(fork, actor))

    async def schedule(self, schedule_id: str) -> Schedule | None:
        """As the store."""
        return await self._again(lambda: self._store.schedule(schedule_id))

    async def schedules(self, after: str, limit: int) -> builtins.list[Schedule]:
        """As the store."""
        return await self._again(lambda: self._store.schedules(after, limit))

    async def save_schedule(
        self, schedule: Schedule, version: int, write_id: str, event: str, actor: str
    ) -> SaveOutcome:
        """As the store."""
        return await self._again(lambda: self._store.save_schedule(schedule, version, write_id, event, actor))

    async def delete_schedule(self, schedule_id: str, actor: str) -> None:
        """As the store."""
        await self._again(lambda: self._store.delete_schedule(schedule_id, actor))

    async def trigger(self, schedule_id: str, slots: Sequence[int], key: str, actor: str) -> builtins.list[str] | None:
        """As the store."""
        return await self._again(lambda: self._store.trigger(schedule_id, slots, key, actor))

    async def fire(self, limit: int, actor: str) -> FiringResult:
        """As the store."""
        return await self._again(lambda: self._store.fire(limit, actor))

    async def look(self, pairs: Sequence[tuple[str, str]], limit: int, *, newest: bool = False) -> AdmissionPreview:
        """As the store."""
        return await self._again(lambda: self._store.look(pairs, limit, newest=newest))

    async def admit(self, request: AdmissionRequest) -> AdmissionResult:
        """As the store."""
        return await self._again(lambda: self._store.admit(request))

    async def standing(self, run_id: str) -> WaitlistPosition | None:
        """As the store."""
        return await self._again(lambda: self._store.standing(run_id))

    async def lined(self, types: Sequence[str]) -> set[str]:
        """As the store."""
        return await self._again(lambda: self._store.lined(types))

    async def recheck_gates(self, actor: str) -> None:
        """As the store."""
        await self._again(lambda: self._store.recheck_gates(actor))

    async def delete_idle_gates(self, limit: int, actor: str) -> int:
        """As the store."""
        return await self._again(lambda: self._store.delete_idle_gates(limit, actor))

    async def set_bounds(self, gate: str, bounds: LimitBounds | None, actor: str) -> None:
        """As the store."""
        await self._again(lambda: self._store.set_bounds(gate, bounds, actor))

    async def set_breaker(self, gate: str, circuit: Circuit | None, actor: str) -> None:
        """As the store."""
        await self._again(lambda: self._store.set_breaker(gate, circuit, actor))

    async def gates(self, after: str, limit: int) -> builtins.list[LimitInfo]:
        """As the store."""
        return await self._again(lambda: self._store.gates(after, limit))

    async def acquire_lock(self, name: str, owner: str, nonce: str, ttl: int, actor: str) -> LockGrant:
        """As the store."""
        return await self._again(lambda: self._store.acquire_lock(name, owner, nonce, ttl, actor))

    async def extend_lock(self, name: str, nonce: str, ttl: int, actor: str) -> LockInfo | None:
        """As the store."""
        return await self._again(lambda: self._store.extend_lock(name, nonce, ttl, actor))

    async def release_lock(self, name: str, token: int, nonce: str | None, actor: str) -> bool:
        """As the store."""
        return await self._again(lambda: self._store.release_lock(name, token, nonce, actor))

    async def succeed(self, names: Sequence[str], actor: str) -> int:
        """As the store."""
        return await self._again(lambda: self._store.succeed(names, actor))

    async def locks(self, after: str, limit: int, name: str | None = None) -> builtins.list[LockInfo]:
        """As the store."""
        return await self._again(lambda: self._store.locks(after, limit, name))

    async def set_watermark(self, watermark: Watermark, actor: str) -> None:
        """As the store."""
        await self._again(lambda: self._store.set_watermark(watermark, actor))

    async def remove_watermark(self, kind: str, name: str, actor: str) -> None:
        """As the store."""
        await self._again(lambda: self._store.remove_watermark(kind, name, actor))

    async def watermarks(self) -> builtins.list[Watermark]:
        """As the store."""
        return await self._again(self._store.watermarks)

    async def depth(self, kind: str, name: str, limit: int) -> int:
        """As the store."""
        return await self._again(lambda: self._store.depth(kind, name, limit))

    async def dead(self, filter: DeadLetterFilter, limit: int, cursor: str | None) -> DeadLetterPage:
        """As the store."""
        return await self._again(lambda: self._store.dead(filter, limit, cursor))

    async def letter(self, run_id: str) -> DeadLetter | None:
        """As the store."""
        return await self._again(lambda: self._store.letter(run_id))

    async def requeue(self, order: Requeue, actor: str) -> RequeueOutcome:
        """As the store."""
        return await self._again(lambda: self._store.requeue(order, actor))

    async def delete(self, run_id: str, reason: str, actor: str, *, discard: bool = False) -> DeleteOutcome:
        """As the store."""
        return await self._again(lambda: self._store.delete(run_id, reason, actor, discard=discard))

    async def undelete(self, run_id: str, actor: str) -> DeleteOutcome:
        """As the store."""
        return await self._again(lambda: self._store.undelete(run_id, actor))

    async def prune(self, what: PruneRequest, limit: int, cursor: str | None, actor: str) -> PruneResult:
        """As the store."""
        return await self._again(lambda: self._store.prune(what, limit, cursor, actor))

    async def register(self, worker: WorkerInfo, serves: Sequence[TypeInfo] = ()) -> None:
        """As the store."""
        await self._again(lambda: self._store.register(worker, serves))

    async def heartbeat(self, worker_id: str) -> bool:
        """As the store."""
        return await self._again(lambda: self._store.heartbeat(worker_id))

    async def report_health(self, worker_id: str, errors: int, problem: str) -> None:
        """As the store."""
        await self._again(lambda: self._store.report_health(worker_id, errors, problem))

    async def retire(self, worker_id: str) -> None:
        """As the store."""
        await self._again(lambda: self._store.retire(worker_id))

    async def sweep(self, limit: int) -> SweepResult:
        """As the store."""
        return await self._again(lambda: self._store.sweep(limit))

    async def workers(self) -> builtins.list[WorkerInfo]:
        """As the store."""
        return await self._again(self._store.workers)

    async def types(self) -> builtins.list[TypeInfo]:
        """As the store."""
        return await self._again(self._store.types)

    async def holdings(self, worker_id: str) -> builtins.list[Lease]:
        """As the store."""
        return await self._again(lambda: self._store.holdings(worker_id))

    async def claim(self, request: ClaimRequest) -> ClaimResult:
        """As the store."""
        return await self._again(lambda: self._store.claim(request))

    async def take(self, request: ClaimByIdRequest) -> ClaimByIdResult:
        """As the store."""
        return await self._again(lambda: self._store.take(request))

    async def due(self, types: Sequence[str], queues: Sequence[str], limit: int) -> builtins.list[str]:
        """As the store."""
        return await self._again(lambda: self._store.due(types, queues, limit))

    async def load(self, run_ids: Sequence[str]) -> builtins.list[LoadedRun]:
        """As the store."""
        return await self._again(lambda: self._store.load(run_ids))

    async def unread(self, run_ids: Sequence[str]) -> builtins.list[Message]:
        """As the store."""
        return await self._again(lambda: self._store.unread(run_ids))

    async def marked(self, worker_id: str) -> builtins.list[Message]:
        """As the store."""
        return await self._again(lambda: self._store.marked(worker_id))

    async def commit(self, turns: Sequence[Turn], actor: str) -> builtins.list[TurnOutcome]:
        """As the store."""
        return await self._again(lambda: self._store.commit(turns, actor))

    async def transact(self, step: TransactionStep) -> TurnOutcome:
        """As the store, once: it may run in a thread, and its function is the user's."""
        return await self._store.transact(step)

    async def recorded(self, turn: Turn, actor: str) -> TurnOutcome:
        """As the store."""
        return await self._again(lambda: self._store.recorded(turn, actor))

    def bounded(self, bound_seconds: float) -> Retrying:
        """The same store with another bound."""
        return Retrying(self._store, self._system, bound_seconds)

    async def _again(self, verb: Callable[[], Awaitable[T]]) -> T:
        if not self._strict:
            return await self._repeated(verb)
        # A little later than an error of the server itself would come.
        limit = asyncio.timeout(self.bound + _MARGIN)
        try:
            async with limit:
                return await self._repeated(verb)
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise StoreUnavailable(
                f"the database did not answer within {self.bound:g} s. Check that it runs and can be reached; what was asked may have "
                "been done"
            ) from error

    async def _repeated(self, verb: Callable[[], Awaitable[T]]) -> T:
        until = self._system.monotonic() + self.bound
        delay = _FIRST_DELAY
        while True:
            try:
                return await verb()
            except StoreUnavailable:
                left = until - self._system.monotonic()
                if left <= 0:
                    raise
            pause = delay * (0.5 + self._system.random() / 2)
            await self._system.sleep(min(pause, left) if self._strict else pause)
            delay = min(2 * delay, _LONGEST_DELAY)
