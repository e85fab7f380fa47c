"""Live updates: one poll of the database for all clients that follow it.

The poll and the live pages of the dashboard share one budget of two statements a second, however many clients there
are. A client gets events of the audit trail, each with its number. It gets `reset` when there were too many of them to
send, and `changed` when something changed that left no event. Updates are hints: what a client shows, it reads.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import suppress

from msgspec import Struct

from perdure.client.engine import Engine
from perdure.client.session import session_of
from perdure.core.audit import Event, EventFilter
from perdure.core.background_loops import LoopGuard, LoopHealth
from perdure.core.ids import check_id
from perdure.core.system import System
from perdure.errors import EngineClosed
from perdure.http.api import ServerEvent
from perdure.http.audit import EventView
from perdure.http.redaction import Redactor
from perdure.http.views import view_of
from perdure.store.contract import Change, Store

logger = logging.getLogger("perdure.http")

#: Events of one tick. More of them are a `reset`.
PAGE = 500
#: Events that are read again, because a transaction with a lower number may commit later.
OVERLAP = 100
#: Seconds between two statements of the poll.
TICK = 1.0
#: Statements a second that all live updates of a process cost together, and how many an idle time saves up.
LIVE_RATE = 2.0
SAVED = 20.0
#: Updates that wait for a slow client before it gets a `reset` instead.
BACKLOG = 1000


class ResetView(Struct, frozen=True):
    """Number of the newest event; what came before has to be read anew."""

    last: int


class LiveTick(Struct, frozen=True):
    """Updates of one tick; `events` is None for a reset."""

    last: int
    events: tuple[Event, ...] | None


class StatementBudget:
    """Statements that live updates may send. Those that wait for their share get it in the order of their calls."""

    def __init__(self, system: System, rate: float = LIVE_RATE) -> None:
        self._system = system
        #: Statements a second.
        self._rate = rate
        self._left = SAVED
        self._at = system.monotonic()
        self._turn = asyncio.Lock()

    def spend(self, statements: float) -> None:
        """Note statements that were sent. The budget may be overdrawn: later calls of `take` wait longer."""
        now = self._system.monotonic()
        self._left = min(SAVED, self._left + (now - self._at) * self._rate) - statements
        self._at = now

    async def take(self, statements: float) -> None:
        """Wait until so many statements may be sent, and count them as sent."""
        async with self._turn:
            self.spend(0)
            # More than can be saved up is sent when the budget is full, and paid for afterwards.
            while (missing := min(statements, SAVED) - self._left) > 0:
                await self._system.sleep(missing / self._rate)
                self.spend(0)
            self.spend(statements)


class Hub:
    """Clients that follow the database, and the task that polls it for them."""

    def __init__(self, engine: Engine, rate: float) -> None:
        self._session = session_of(engine)
        self.budget = StatementBudget(self._session.system, rate)
        self._guard = LoopGuard("live updates", self._session.system, LoopHealth(), logger)
        self._clients: set[asyncio.Queue[LiveTick]] = set()
        #: Those of the clients that want to know the events, not only that something has changed.
        self._readers: set[asyncio.Queue[LiveTick]] = set()
        self._task: asyncio.Task[None] | None = None
        self._seen: dict[int, None] = {}
        self._last = 0
        #: This process has written since the last tick.
        self._written = False

    async def follow(self, shown: Redactor, after: int | None, run: str | None) -> AsyncIterator[ServerEvent | None]:
        """Follow the database, from now on or after an event. Raises `InvalidId`."""
        await self._session.connect()
        return self._followed(shown, after, None if run is None else check_id(run))

    async def join(self, *, events: bool = True) -> asyncio.Queue[LiveTick]:
        """Poll for one more client, whose updates are put into the queue until it leaves; perhaps without events."""
        store = await self._session.connect()
        queue: asyncio.Queue[LiveTick] = asyncio.Queue(BACKLOG)
        if not self._clients or (events and store.exclusive and not self._readers):
            await self._skip(store)
        self._clients.add(queue)
        if events:
            self._readers.add(queue)
        if self._task is None or self._task.done():
            self._task = self._session.system.spawn(
                self._guard.keep_going(self._run, self._session.system.sleep), "perdure live"
            )
        return queue

    def leave(self, queue: asyncio.Queue[LiveTick]) -> None:
        """Poll no longer for a client."""
        self._clients.discard(queue)
        self._readers.discard(queue)

    async def close(self) -> None:
        """Stop polling."""
        self._clients.clear()
        self._readers.clear()
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def _followed(
        self, shown: Redactor, after: int | None, run_id: str | None
    ) -> AsyncIterator[ServerEvent | None]:
        # Not before: a stream that never begins would not leave.
        queue = await self.join()
        sent = -1
        try:
            # First, so that the client knows that it is connected.
            yield None
            if after is not None:
                store = await self._session.connect()
                missed = await store.events_page(EventFilter(run_id=run_id), PAGE, after=after)
                if len(missed) == PAGE:
                    yield ServerEvent(ResetView(self._last), id=str(self._last), event="reset")
                else:
                    for event in missed:
                        sent = event.id
                        yield _sent(event, shown)
            while True:
                tick = await queue.get()
                if tick.events is None:
                    yield ServerEvent(ResetView(tick.last), id=str(tick.last), event="reset")
                    continue
                if not tick.events:
                    yield ServerEvent(ResetView(tick.last), event="changed")
                for event in tick.events:
                    if (run_id is None or event.run_id == run_id) and event.id != sent:
                        yield _sent(event, shown)
        finally:
            self.leave(queue)

    async def _run(self) -> None:
        """Poll while there are clients."""
        store = await self._session.connect()
        stop = store.subscribe(self._note_write)
        try:
            with suppress(EngineClosed):
                cost = 1
                while self._clients:
                    await self._session.system.sleep(TICK * cost)
                    tick, cost = await self._tick(store)
                    self.budget.spend(cost)
                    self._publish(tick)
                    self._guard.succeeded()
        finally:
            stop()

    def _note_write(self, change: Change) -> None:
        self._written = True

    async def _tick(self, store: Store) -> tuple[LiveTick | None, int]:
        """The updates since the last tick, and the number of statements that reading them took."""
        asked = 0
        if store.exclusive:
            # Nearly free where it tells anything. A server does not tell. A watch would check the file twenty times a
            # second while others write, even after the last client has left.
            asked, written, self._written = 1, self._written, False
            if not await store.poll_changes(watch=False) and not written:
                return None, asked
            if not self._readers:
                return LiveTick(self._last, ()), asked
        found = await store.events_page(EventFilter(), PAGE + OVERLAP, after=max(0, self._last - OVERLAP))
        if len(found) == PAGE + OVERLAP:
            await self._skip(store)
            return LiveTick(self._last, None), asked + 2
        # A low number that was not there before belongs to a transaction that took longer.
        fresh = tuple(event for event in found if event.id not in self._seen)
        self._last = max((event.id for event in found), default=self._last)
        self._seen = dict.fromkeys(event.id for event in found)
        return LiveTick(self._last, fresh) if fresh or store.exclusive else None, asked + 1

    async def _skip(self, store: Store) -> None:
        """Go on with events after those that are there."""
        recent = await store.events_page(EventFilter(), OVERLAP)
        self._seen = dict.fromkeys(event.id for event in recent)
        self._last = max(self._seen, default=0)

    def _publish(self, tick: LiveTick | None) -> None:
        if tick is None:
            return
        for queue in self._clients:
            if queue.full():
                while not queue.empty():
                    queue.get_nowait()
                queue.put_nowait(LiveTick(tick.last, None))
            else:
                queue.put_nowait(tick)


def _sent(event: Event, shown: Redactor) -> ServerEvent:
    return ServerEvent(view_of(EventView, event, shown), id=str(event.id), event="event")
