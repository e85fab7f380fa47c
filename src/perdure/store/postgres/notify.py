"""Hints between processes: whoever commits what others may wait for says so, and those look at once.

They are sent after the commit, on a connection of their own that also listens. So a commit costs nothing more, and a pooler,
through which nobody can listen, may stand before the other connections. What is said while a hint is being sent leaves with the
next. What gets lost costs time only, for everybody asks now and then anyway; so a lost connection is opened again at leisure.
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
from perdure.store.postgres.sessions import session_name
from perdure.store.server.timeouts import Timeouts
from perdure.store.url import PostgresUrl

_log = logging.getLogger("perdure.store")

_NOTIFY = "SELECT pg_notify($1, $2)"
_ALIVE = "SELECT 1"

#: Seconds between two hints, between two looks whether a silent connection is alive, and before a lost one is replaced.
_GAP = 0.005
_SILENCE = 30.0
_PAUSES = (0.2, 30.0)
#: Seconds that the last hint may take when everything else has ended.
_LAST_WORDS = 2.0


class Notifier:
    """The hints of one store; without somewhere to listen there are none."""

    def __init__(self, url: PostgresUrl, system: System, hear: Listener) -> None:
        self._dsn = url.listen
        self._guard = LoopGuard("hints between processes", system, LoopHealth(), _log)
        self._called = session_name(url.called)
        self._system = system
        self._hear = hear
        # Of a fixed length, as names of channels are short and those of schemas need not be.
        self._channel = f"perdure_{hashlib.sha256(url.tables.encode()).hexdigest()[:20]}"
        #: What tells our own hints from those of others.
        self._name = system.entropy(8).hex()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._rung: asyncio.Future[None] | None = None
        self._connection: PostgresConnection | None = None
        self._unsaid = 0
        self._ending = False
        self._failures = 0

    def start(self) -> None:
        """Begin, on the current event loop. Whether the server can be reached shows later, and only in the log."""
        if self._dsn is not None:
            self._loop = asyncio.get_running_loop()
            self._ending = False
            self._task = self._system.spawn(self._guard.keep_going(self._run, self._wait), "perdure notices")

    async def stop(self) -> None:
        """Say what is left to say, and end."""
        task, self._task = self._task, None
        if task is None or self._loop is None or self._loop.is_closed():
            return
        if asyncio.get_running_loop() is not self._loop:
            self._loop.call_soon_threadsafe(task.cancel)
            return
        self._ending = True
        self._ring()
        timer = self._system.call_later(_LAST_WORDS, task.cancel)
        await asyncio.wait([task])
        timer.cancel()

    def silence(self) -> None:
        """In a forked child: cut off its copy of the connection."""
        if self._connection is not None:
            detach_descriptor(self._connection.fileno())

    def say(self, change: Change) -> None:
        """Something was committed. From any thread; returns at once."""
        loop = self._loop
        if loop is None or self._task is None:
            return
        # A loop that has ended meanwhile has nobody left to say it.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(self._add, int(change))

    def _add(self, change: int) -> None:
        self._unsaid |= change
        self._ring()

    def _ring(self) -> None:
        if self._rung is not None and not self._rung.done():
            self._rung.set_result(None)

    async def _wait(self, seconds: float) -> None:
        """Until something is to be said, the connection ends, or time has passed."""
        self._rung = asyncio.get_running_loop().create_future()
        timer = self._system.call_later(seconds, self._ring)
        try:
            await self._rung
        finally:
            timer.cancel()
            self._rung = None

    async def _run(self) -> None:
        dsn = self._dsn
        while dsn is not None:
            try:
                connection = await connect(dsn, self._name, Timeouts(), called=self._called, prepares=False)
                self._connection = connection
                try:
                    await self._talk(connection)
                finally:
                    self._connection = None
                    await close_gracefully(connection)
            except errors.ERRORS as error:
                if not self._failures:
                    _log.warning(
                        "Hints between processes are off until the server can be reached again, which costs time only: %s",
                        str(error) or type(error).__name__,
                    )
                self._failures += 1
            if self._ending:
                return
            pause = min(_PAUSES[0] * 2 ** min(self._failures, 10), _PAUSES[1])
            await self._wait(pause * (0.5 + self._system.random() / 2))

    async def _talk(self, connection: PostgresConnection) -> None:
        connection.add_termination_listener(lambda _: self._ring())
        await connection.add_listener(self._channel, self._on_notice)
        self._failures = 0
        # Notifications sent while this process did not listen.
        self._hear(Change.ALL)
        while not connection.is_closed():
            unsaid, self._unsaid = self._unsaid, 0
            if unsaid:
                try:
                    await connection.execute(_NOTIFY, self._channel, f"{unsaid} {self._name}")
                except BaseException:
                    self._unsaid |= unsaid
                    raise
                await self._system.sleep(_GAP)
            elif self._ending:
                return
            else:
                await self._wait(_SILENCE)
                if not self._unsaid and not self._ending:
                    await connection.execute(_ALIVE)

    def _on_notice(self, connection: object, pid: int, channel: str, payload: object) -> None:
        change, _, name = str(payload).partition(" ")
        if name != self._name and change.isdecimal():
            self._hear(Change(int(change) & int(Change.ALL)))
