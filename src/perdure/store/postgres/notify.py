"""Notifications between processes: a process announces its commit, and processes that wait for it poll at once.

Notifications are sent after the commit, on a connection of their own that also listens. So a commit costs nothing more,
and the other connections may go through a pooler, which does not support listening. Changes that are announced while a
notification is being sent leave with the next one. A lost notification only costs time, because every process polls
anyway; so a lost connection is reopened after a pause.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from contextlib import suppress

from perdure.core.background_loops import LoopGuard, LoopHealth
from perdure.core.process_fork import detach_descriptor
from perdure.core.system import System
from perdure.store.contract import Change, Listener
from perdure.store.postgres import errors
from perdure.store.postgres.driver import PostgresConnection, close_gracefully, connect
from perdure.store.postgres.session import session_name
from perdure.store.server.pool import Timeouts
from perdure.store.url import PostgresUrl

_log = logging.getLogger("perdure.store")

_NOTIFY = "SELECT pg_notify($1, $2)"
_ALIVE = "SELECT 1"

#: Seconds between two notifications, between two checks of a silent connection, and before a lost one is reopened.
_GAP = 0.005
_SILENCE = 30.0
_PAUSES = (0.2, 30.0)
#: Seconds that the last notification may take when the store closes.
_LAST_SECONDS = 2.0


class Notifier:
    """The notifications of one store; without a URL to listen on there are none."""

    def __init__(self, url: PostgresUrl, system: System, on_change: Listener) -> None:
        self._dsn = url.listen
        self._guard = LoopGuard("notifications between processes", system, LoopHealth(), _log)
        self._called = session_name(url.called)
        self._system = system
        self._on_change = on_change
        # Hashed, because a channel name is limited to 63 bytes and a schema name may use all of them.
        self._channel = f"perdure_{hashlib.sha256(url.tables.encode()).hexdigest()[:20]}"
        #: Identifies our own notifications.
        self._name = system.entropy(8).hex()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._wakeup: asyncio.Future[None] | None = None
        self._connection: PostgresConnection | None = None
        self._unsent = 0
        self._ending = False
        self._failures = 0

    def start(self) -> None:
        """Start on the current event loop. If the server cannot be reached, only the log tells."""
        if self._dsn is not None:
            self._loop = asyncio.get_running_loop()
            self._ending = False
            self._task = self._system.spawn(self._guard.keep_going(self._run, self._wait), "perdure notices")

    async def stop(self) -> None:
        """Send what is left to send, and stop."""
        task, self._task = self._task, None
        if task is None or self._loop is None or self._loop.is_closed():
            return
        if asyncio.get_running_loop() is not self._loop:
            self._loop.call_soon_threadsafe(task.cancel)
            return
        self._ending = True
        self._wake()
        timer = self._system.call_later(_LAST_SECONDS, task.cancel)
        await asyncio.wait([task])
        timer.cancel()

    def silence(self) -> None:
        """Cut off the connection in a forked child, which has a copy of it."""
        if self._connection is not None:
            detach_descriptor(self._connection.fileno())

    def announce(self, change: Change) -> None:
        """Announce a change that was committed. From any thread; returns at once."""
        loop = self._loop
        if loop is None or self._task is None:
            return
        # A closed loop sends nothing any more.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(self._add, int(change))

    def _add(self, change: int) -> None:
        self._unsent |= change
        self._wake()

    def _wake(self) -> None:
        if self._wakeup is not None and not self._wakeup.done():
            self._wakeup.set_result(None)

    async def _wait(self, seconds: float) -> None:
        """Wait until a change is announced, the connection ends, or the time has passed."""
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
            try:
                connection = await connect(dsn, self._name, Timeouts(), called=self._called, prepares=False)
                self._connection = connection
                try:
                    await self._exchange(connection)
                finally:
                    self._connection = None
                    await close_gracefully(connection)
            except errors.ERRORS as error:
                if not self._failures:
                    _log.warning(
                        "notifications are off until the server can be reached again, which only costs time: %s",
                        str(error) or type(error).__name__,
                    )
                self._failures += 1
            if self._ending:
                return
            pause = min(_PAUSES[0] * 2 ** min(self._failures, 10), _PAUSES[1])
            await self._wait(pause * (0.5 + self._system.random() / 2))

    async def _exchange(self, connection: PostgresConnection) -> None:
        connection.add_termination_listener(lambda _: self._wake())
        await connection.add_listener(self._channel, self._on_notification)
        self._failures = 0
        # Notifications may have been missed while this process did not listen.
        self._on_change(Change.ALL)
        while not connection.is_closed():
            unsent, self._unsent = self._unsent, 0
            if unsent:
                try:
                    await connection.execute(_NOTIFY, self._channel, f"{unsent} {self._name}")
                except BaseException:
                    self._unsent |= unsent
                    raise
                await self._system.sleep(_GAP)
            elif self._ending:
                return
            else:
                await self._wait(_SILENCE)
                if not self._unsent and not self._ending:
                    await connection.execute(_ALIVE)

    def _on_notification(self, connection: object, pid: int, channel: str, payload: object) -> None:
        change, _, name = str(payload).partition(" ")
        if name != self._name and change.isdecimal():
            self._on_change(Change(int(change) & int(Change.ALL | Change.ENDED)))
