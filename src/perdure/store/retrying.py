"""A store that repeats a verb while the database is unavailable.

The same call is repeated with the same arguments until it succeeds or the bound is reached. Every verb recognises its
own repetition, so the caller cannot tell how often it was tried.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar, cast

from perdure.core.audit import Audit
from perdure.core.model.turn import TurnOutcome
from perdure.core.system import System
from perdure.errors import StoreError, StoreUnavailable
from perdure.store.contract import Change, EventObserver, Listener, Store
from perdure.store.sql.dialect import Transaction
from perdure.store.sql.store import SqlStore
from perdure.store.user_connections.transaction_step import TransactionStep

Ask = Callable[..., Awaitable[Any]]
Verb = TypeVar("Verb", bound=Callable[..., Any])

#: Pauses between two attempts grow from the first to the longest, in seconds.
_FIRST_DELAY = 0.05
_LONGEST_DELAY = 2.0
#: A strict bound ends this many seconds late, so that an error of the server itself arrives first.
_MARGIN = 0.25


def _repeated(verb: Verb) -> Verb:
    """A method that calls the verb of the same name on the wrapped store, and repeats it while that is unavailable."""
    name = verb.__name__

    @functools.wraps(verb)
    def call(self: Retrying, *args: Any, **options: Any) -> Awaitable[Any]:
        ask = getattr(self._store, name)
        repeat = self.within_bound if self._strict else self._until_available
        return repeat(ask, args, options)

    return cast("Verb", call)


class Repeating:
    """Repeats a call for up to `bound` seconds while the other side is unavailable, after pauses that grow.

    A `strict` bound also covers a server that does not answer at all: the caller gets an error, and the server may
    still carry out the call.
    """

    #: The other side, in errors.
    other = "the database"

    def __init__(self, system: System, bound_seconds: float, *, strict: bool) -> None:
        self._system = system
        #: How long a call is repeated, in seconds.
        self.bound = bound_seconds
        self._strict = strict

    async def within_bound(self, verb: Ask, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Repeat a call within a strict bound. Raises `StoreUnavailable`."""
        limit = asyncio.timeout(self.bound + _MARGIN)
        try:
            async with limit:
                return await self._until_available(verb, args, options)
        except TimeoutError as error:
            if not limit.expired():
                raise
            unavailable = StoreUnavailable(
                f"{self.other} did not answer within {self.bound:g} s; the request may have been carried out; "
                f"check that {self.other} runs and can be reached"
            )
            if (tell := self._system.telemetry.store_failed) is not None:
                tell(unavailable)
            raise unavailable from error

    async def _until_available(self, verb: Ask, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        until = self._system.monotonic() + self.bound
        delay = _FIRST_DELAY
        while True:
            try:
                return await verb(*args, **options)
            except StoreError as error:
                if (tell := self._system.telemetry.store_failed) is not None:
                    tell(error)
                left = until - self._system.monotonic()
                if left <= 0 or not isinstance(error, StoreUnavailable):
                    raise
            pause = delay * (0.5 + self._system.random() / 2)
            await self._system.sleep(min(pause, left) if self._strict else pause)
            delay = min(2 * delay, _LONGEST_DELAY)


class Retrying(Repeating):
    """The verbs of `Store`, each repeated while the database is unavailable."""

    def __init__(self, store: Store, system: System, bound_seconds: float = 30.0, *, strict: bool = False) -> None:
        self.poll_interval = store.poll_interval
        self.lanes = store.lanes
        self.inbox_page = store.inbox_page
        self.exclusive, self.blocks, self.announces = store.exclusive, store.blocks, store.announces
        self._store = store
        #: The database's time as last measured; asks nothing of the server.
        self.clock = store.clock
        # SQLite answers as soon as its file is free; its busy timeout bounds that wait.
        super().__init__(system, bound_seconds, strict=strict and not store.exclusive)

    async def open(self) -> None:
        """Open the store, once: a failure at start-up is more likely a mistake than an outage."""
        if self._strict and isinstance(self._store, SqlStore):
            # Migrations take as long as they take.
            self._store.first_answer_seconds = self.bound + _MARGIN
        await self._store.open()

    async def close(self) -> None:
        """Close the store."""
        await self._store.close()

    @property
    def is_notified(self) -> bool:
        """True while the changes of other processes are announced to this one."""
        return self._store.is_notified

    def announce(self, change: Change) -> None:
        """Announce something to other processes that no commit announces."""
        self._store.announce(change)

    @property
    def audit(self) -> Audit:
        """Level of the audit trail; may be set."""
        return self._store.audit

    @audit.setter
    def audit(self, level: Audit) -> None:
        self._store.audit = level

    def observe_events(self, observer: EventObserver) -> Callable[[], None]:
        """Call the observer with the audit events of every commit; the returned function ends that."""
        return self._store.observe_events(observer)

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call the listener after every change; the returned function ends that."""
        return self._store.subscribe(listener)

    poll_changes = _repeated(Store.poll_changes)
    now = _repeated(Store.now)
    create = _repeated(Store.create)
    get = _repeated(Store.get)
    get_many = _repeated(Store.get_many)
    list = _repeated(Store.list)
    count = _repeated(Store.count)
    run_times = _repeated(Store.run_times)
    attributes = _repeated(Store.attributes)
    history = _repeated(Store.history)
    records = _repeated(Store.records)
    snapshot = _repeated(Store.snapshot)
    waits = _repeated(Store.waits)
    updated_at = _repeated(Store.updated_at)
    inbox = _repeated(Store.inbox)
    events = _repeated(Store.events)
    events_page = _repeated(Store.events_page)
    outputs = _repeated(Store.outputs)
    send = _repeated(Store.send)
    broadcast = _repeated(Store.broadcast)
    cancel = _repeated(Store.cancel)
    terminate = _repeated(Store.terminate)
    decide_message = _repeated(Store.decide_message)
    report_attempt = _repeated(Store.report_attempt)
    emit_event = _repeated(Store.emit_event)
    order_run = _repeated(Store.order_run)
    set_priority = _repeated(Store.set_priority)
    pin = _repeated(Store.pin)
    unpin = _repeated(Store.unpin)
    pause = _repeated(Store.pause)
    resume = _repeated(Store.resume)
    pauses = _repeated(Store.pauses)
    unblock = _repeated(Store.unblock)
    retry = _repeated(Store.retry)
    delete_events = _repeated(Store.delete_events)
    fork = _repeated(Store.fork)
    schedule = _repeated(Store.schedule)
    schedules = _repeated(Store.schedules)
    save_schedule = _repeated(Store.save_schedule)
    delete_schedule = _repeated(Store.delete_schedule)
    list_fires = _repeated(Store.list_fires)
    trigger = _repeated(Store.trigger)
    fire_schedules = _repeated(Store.fire_schedules)
    preview_admission = _repeated(Store.preview_admission)
    admit = _repeated(Store.admit)
    waitlist_position = _repeated(Store.waitlist_position)
    waitlisted_types = _repeated(Store.waitlisted_types)
    recheck_gates = _repeated(Store.recheck_gates)
    delete_idle_gates = _repeated(Store.delete_idle_gates)
    set_bounds = _repeated(Store.set_bounds)
    set_breaker = _repeated(Store.set_breaker)
    permits = _repeated(Store.permits)
    waiting_runs = _repeated(Store.waiting_runs)
    gates = _repeated(Store.gates)
    acquire_lock = _repeated(Store.acquire_lock)
    extend_lock = _repeated(Store.extend_lock)
    release_lock = _repeated(Store.release_lock)
    start_successors = _repeated(Store.start_successors)
    locks = _repeated(Store.locks)
    set_watermark = _repeated(Store.set_watermark)
    remove_watermark = _repeated(Store.remove_watermark)
    watermarks = _repeated(Store.watermarks)
    depth = _repeated(Store.depth)
    backlog = _repeated(Store.backlog)
    create_token = _repeated(Store.create_token)
    revoke_token = _repeated(Store.revoke_token)
    touch_tokens = _repeated(Store.touch_tokens)
    token = _repeated(Store.token)
    tokens = _repeated(Store.tokens)
    list_dead_letters = _repeated(Store.list_dead_letters)
    get_dead_letter = _repeated(Store.get_dead_letter)
    delete = _repeated(Store.delete)
    undelete = _repeated(Store.undelete)
    prune = _repeated(Store.prune)
    register = _repeated(Store.register)
    heartbeat = _repeated(Store.heartbeat)
    drain = _repeated(Store.drain)
    report_health = _repeated(Store.report_health)
    retire = _repeated(Store.retire)
    sweep = _repeated(Store.sweep)
    workers = _repeated(Store.workers)
    save_sources = _repeated(Store.save_sources)
    save_report = _repeated(Store.save_report)
    save_graph_entries = _repeated(Store.save_graph_entries)
    copy_graph_thread = _repeated(Store.copy_graph_thread)
    delete_graph_entries = _repeated(Store.delete_graph_entries)
    graph_checkpoints = _repeated(Store.graph_checkpoints)
    documents = _repeated(Store.documents)
    types = _repeated(Store.types)
    leases = _repeated(Store.leases)
    claim = _repeated(Store.claim)
    claim_by_id = _repeated(Store.claim_by_id)
    ready_run_ids = _repeated(Store.ready_run_ids)
    load = _repeated(Store.load)
    unread_messages = _repeated(Store.unread_messages)
    unread_messages_of_worker = _repeated(Store.unread_messages_of_worker)
    commit = _repeated(Store.commit)
    pack = _repeated(Store.pack)
    keep_log = _repeated(Store.keep_log)
    turn_outcome = _repeated(Store.turn_outcome)

    def user_transaction(
        self, connection: object, actor: str, *, locking: bool = True
    ) -> AbstractAsyncContextManager[Transaction]:
        """The transaction that the caller has open on their own connection; only the caller can repeat it."""
        return self._store.user_transaction(connection, actor, locking=locking)

    async def transact(self, step: TransactionStep) -> TurnOutcome:
        """Run a transaction step, once: its function is the user's code and may run in a thread."""
        return await self._store.transact(step)

    def bounded(self, bound_seconds: float) -> Retrying:
        """The same store with another bound."""
        return Retrying(self._store, self._system, bound_seconds)
