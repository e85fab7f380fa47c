"""Notifications between processes: a commit is announced, and processes that wait for it poll at once.

A process announces its commits after it has made them, on a connection of the pool, so that a commit costs nothing more
and takes no lock that other commits need. Changes that are announced while a notification is being sent leave with the
next one. For all other programs a trigger announces (`migrations/postgres/0020_announcements.sql`).

A process listens once something in it waits, on a connection of its own. It relies on that connection only while proofs
arrive: notifications that it sends to itself on another connection. A pooler that gives the connection's server session
to other clients, and a connection that was lost without notice, so cost time and nothing else. Every process polls
anyway; one that relies on notifications polls less often.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio.events import _get_running_loop
from collections.abc import Awaitable, Callable
from contextlib import suppress

from perdure.core.background_loops import LoopGuard, LoopHealth
from perdure.core.process_fork import detach_descriptor
from perdure.core.system import Cancellable, System
from perdure.errors import PerdureError
from perdure.store.contract import Change, Listener
from perdure.store.postgres import errors
from perdure.store.postgres.driver import PostgresConnection, close_gracefully, connect
from perdure.store.postgres.session import session_name
from perdure.store.server.pool import Timeouts
from perdure.store.url import PostgresUrl

_log = logging.getLogger("perdure.store")

#: Seconds between two notifications; of silence before a proof is sent; and that a proof may take.
_GAP = 0.005
_SILENCE = 15.0
_PROOF = 10.0
#: Shortest and longest pause before a lost connection is reopened, and the pause if notifications do not arrive.
_PAUSES = (0.2, 30.0)
_DEAF = 60.0
#: Seconds that the last notification may take when the store closes.
_LAST_SECONDS = 2.0
#: Workers that look for a new run at once. In a larger fleet each waits for a random time of up to so many seconds for
#: each further worker, and for no more than the third number.
_AT_ONCE = 4
_STAGGER = 0.0025
_LONGEST_STAGGER = 0.25

_FAILURES: tuple[type[Exception], ...] = (PerdureError, *errors.ERRORS)

_SENT = int(Change.ALL | Change.ENDED)


class Notifier:
    """The notifications of one store.

    `notify` sends a payload on a connection of the pool; `channel` reads the name of the channel. Without a URL to
    listen on, the process announces and does not listen.
    """

    def __init__(
        self,
        url: PostgresUrl,
        system: System,
        on_change: Listener,
        notify: Callable[[str], Awaitable[object]],
        channel: Callable[[], Awaitable[str]],
    ) -> None:
        self._dsn = url.listen
        self._guard = LoopGuard("notifications between processes", system, LoopHealth(), _log)
        self._called = session_name(url.called)
        self._system = system
        self._on_change = on_change
        self._notify = notify
        self._channel = channel
        #: Identifies our own notifications.
        self._name = system.entropy(8).hex()
        #: Number of live workers, as far as is known.
        self.workers = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wanted = False
        self._listening: asyncio.Task[None] | None = None
        self._sending: asyncio.Task[None] | None = None
        self._wakeup: asyncio.Future[None] | None = None
        self._connection: PostgresConnection | None = None
        self._proof: asyncio.Future[None] | None = None
        self._proofs = 0
        #: True while notifications arrive, as far as is known.
        self.arrives = False
        self._heard = False
        self._warned = False
        #: A notification of ready runs that waits for its moment.
        self._staggered: Cancellable | None = None
        self._unsent = 0
        self._ending = False
        self._failures = 0

    def start(self) -> None:
        """Start on the current event loop. If the server cannot be reached, only the log tells."""
        self._loop = asyncio.get_running_loop()
        self._ending = False
        if self._wanted:
            self._begin()

    async def stop(self) -> None:
        """Send what is left to send, and stop."""
        listening, self._listening = self._listening, None
        self._wanted = self.arrives = False
        if self._loop is None or self._loop.is_closed():
            return
        if asyncio.get_running_loop() is not self._loop:
            for task in (listening, self._sending):
                if task is not None:
                    self._loop.call_soon_threadsafe(task.cancel)
            return
        self._ending = True
        if self._staggered is not None:
            self._staggered.cancel()
        if listening is not None:
            listening.cancel()
            await asyncio.wait([listening])
        if (sending := self._sending) is not None:
            await asyncio.wait([sending], timeout=_LAST_SECONDS)
            sending.cancel()
        self._loop = None

    def silence(self) -> None:
        """Cut off the connection in a forked child, which has a copy of it."""
        self.arrives = False
        if self._connection is not None:
            detach_descriptor(self._connection.fileno())

    # announcing

    def announce(self, change: int) -> None:
        """Announce a change that was committed. From any thread; returns at once."""
        loop = self._loop
        if loop is None:
            return
        if _get_running_loop() is loop:
            self._add(change)
            return
        # A closed loop sends nothing any more.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(self._add, change)

    def _add(self, change: int) -> None:
        self._unsent |= change & _SENT
        if self._sending is None and self._unsent and not self._ending:
            self._sending = self._system.spawn(self._send(), "perdure announcements")

    async def _send(self) -> None:
        failures = 0
        try:
            while self._unsent:
                unsent, self._unsent = self._unsent, 0
                try:
                    await self._notify(f"{unsent} {self._name}")
                    failures = 0
                except (PerdureError, OSError) as error:
                    self._unsent |= unsent
                    failures += 1
                    _log.debug("a notification was not sent: %s", error)
                if self._ending:
                    if failures:
                        return
                    continue
                await self._pause(min(_GAP * 2.0 ** min(failures, 12), _PAUSES[1]))
        finally:
            self._sending = None

    async def _pause(self, seconds: float) -> None:
        # Not the sleep of the system: the announcement of a commit must not move a clock that the caller moves.
        over = asyncio.Event()
        timer = self._system.call_later(seconds, over.set)
        try:
            await over.wait()
        finally:
            timer.cancel()

    # listening

    def listen(self) -> None:
        """Listen from now on, because something waits. From any thread."""
        if self._wanted or self._dsn is None:
            return
        self._wanted = True
        if self._loop is not None:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._begin)

    def _begin(self) -> None:
        if self._listening is None and not self._ending:
            self._listening = self._system.spawn(self._guard.keep_going(self._run, self._wait), "perdure notices")

    def _wake(self) -> None:
        if self._wakeup is not None and not self._wakeup.done():
            self._wakeup.set_result(None)

    async def _wait(self, seconds: float) -> None:
        """Wait until the connection ends, or the time has passed."""
        self._wakeup = asyncio.get_running_loop().create_future()
        timer = self._system.call_later(seconds, self._wake)
        try:
            await self._wakeup
        finally:
            timer.cancel()
            self._wakeup = None

    async def _run(self) -> None:
        dsn = self._dsn
        while dsn is not None:
            pause = 0.0
            try:
                connection = await connect(dsn, self._name, Timeouts(), called=self._called, prepares=False)
                self._connection = connection
                try:
                    await self._hear(connection)
                finally:
                    self._connection = None
                    await close_gracefully(connection)
            except TimeoutError:
                pause = _DEAF
                self._warn(
                    "they do not arrive, so this process polls more often; if the URL leads to a pooler that shares "
                    "sessions, add listen=HOST:PORT of the server itself to the URL, or notify=off"
                )
            except _FAILURES as error:
                self._warn(
                    f"this process polls more often until the server is back: {str(error) or type(error).__name__}"
                )
            self._lose()
            self._failures += 1
            pause = pause or min(_PAUSES[0] * 2 ** min(self._failures, 10), _PAUSES[1])
            await self._wait(pause * (0.5 + self._system.random() / 2))

    def _warn(self, problem: str) -> None:
        if not self._warned:
            self._warned = True
            _log.warning("notifications are off: %s", problem)

    def _lose(self) -> None:
        if self.arrives:
            self.arrives = False
            # Code that relied on notifications polls now, and then more often.
            self._on_change(Change.ALL)

    async def _hear(self, connection: PostgresConnection) -> None:
        connection.add_termination_listener(lambda _: self._wake())
        await connection.add_listener(await self._channel(), self._on_notification)
        # Notifications may have been missed while this process did not listen.
        self._on_change(Change.ALL)
        while not connection.is_closed():
            if not self._heard:
                await self._prove()
                self._failures = 0
                self.arrives, self._warned = True, False
            self._heard = False
            await self._wait(_SILENCE)

    async def _prove(self) -> None:
        """Wait for a notification from this process to itself. Raises `TimeoutError`."""
        self._proofs += 1
        self._proof = asyncio.get_running_loop().create_future()
        try:
            await self._notify(f"0 {self._name} {self._proofs}")
            async with asyncio.timeout(_PROOF):
                await self._proof
        finally:
            self._proof = None

    def _on_notification(self, connection: object, pid: int, channel: str, payload: object) -> None:
        change, _, sender = str(payload).partition(" ")
        name, _, proof = sender.partition(" ")
        if name == self._name:
            # An announcement of our own may have been sent on a session that a pooler shares with this one.
            if proof == str(self._proofs) and self._proof is not None and not self._proof.done():
                self._proof.set_result(None)
        elif change.isdecimal():
            self._heard = True
            self._pass_on(int(change) & _SENT)

    def _pass_on(self, change: int) -> None:
        ready = int(Change.READY)
        if self.workers > _AT_ONCE and change & ready:
            change &= ~ready
            if self._staggered is None:
                longest = min(_LONGEST_STAGGER, (self.workers - _AT_ONCE) * _STAGGER)
                self._staggered = self._system.call_later(longest * self._system.random(), self._pass_on_ready)
        if change:
            self._on_change(Change(change))

    def _pass_on_ready(self) -> None:
        self._staggered = None
        self._on_change(Change.READY)
