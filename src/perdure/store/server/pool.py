"""Connection pools, one for each event loop.

A connection belongs to the loop that opened it, so each loop that uses the store has a pool of its own; a heartbeat on
its own loop never waits for connections of others. When a loop ends, its connections end with it. The store returns a
connection as it took it, so that there is nothing to reset between two uses; connections that functions of the user had
are cleaned. Connections to a replaced server are not used again. While the server cannot be reached, one task at a time
tries to reconnect, at growing random intervals.

Timeouts of connections are shorter than a lease, so that its holder notices a lost server in time. The server gets
them, too, so that it neither continues a statement whose client has given up, nor keeps the locks of a client that
died.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Generic, Protocol, TypeVar

from msgspec import Struct

from perdure.core.process_fork import detach_descriptor, suppress_pending_warning
from perdure.core.system import System
from perdure.errors import EngineClosed

#: The part of a lease that a statement may take, and the shortest time that is worth trying, in seconds.
_SHARE = 0.8
_SHORTEST = 1.0


class Timeouts(Struct, frozen=True):
    """Timeouts in seconds."""

    statement: float = 12.0
    connect: float = 5.0
    lock: float = 2.0

    def within(self, lease: float) -> Timeouts:
        """Timeouts for the holder of a lease of that many seconds."""
        statement = min(self.statement, max(_SHORTEST, _SHARE * lease))
        return Timeouts(statement, min(self.connect, statement / 2), min(self.lock, statement / 4))

    @property
    def server_statement(self) -> float:
        """Statement timeout of the server: slightly below our own, so that the server reports it before we give up."""
        return 0.85 * self.statement


#: Timeouts without a lease, or with one of the default length.
DEFAULT_TIMEOUTS = Timeouts()


#: Seconds before the second attempt to reach a server that could not be reached, and between two attempts at the most.
_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 2.0


class PooledConnection(Protocol):
    """Interface that a pool needs of a connection."""

    #: Which of the servers that were met at this address it leads to (see `perdure.store.server.identity`).
    epoch: int

    def is_closed(self) -> bool:
        """True if it is closed."""

    def fileno(self) -> int:
        """The descriptor of its socket; negative if it has none any more."""

    def terminate(self) -> None:
        """End it at once."""


C = TypeVar("C", bound=PooledConnection)


class Pool(Generic[C]):
    """Connections of one event loop: the last one used for the same purpose first, then the most recently used.

    A server prepares and plans statements for each connection separately. PostgreSQL plans a claim six times on a
    connection before it keeps one plan, which costs more than the statement itself.
    """

    def __init__(
        self,
        system: System,
        connect: Callable[[], Awaitable[C]],
        say_goodbye: Callable[[C], Awaitable[None]],
        size: int,
        is_current: Callable[[C], bool],
        ended: Callable[[Pool[C]], object],
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self._system = system
        self._connect = connect
        self._say_goodbye = say_goodbye
        self._is_current = is_current
        self._ended = ended
        self._room = asyncio.Semaphore(size)
        self._idle: list[C] = []
        #: By purpose, the connection that was last used for it, whatever has become of it.
        self._last: dict[str, C] = {}
        #: Those that are idle and those in use.
        self._opened: weakref.WeakSet[C] = weakref.WeakSet()
        self._closed = False
        #: Attempts in a row that failed, and the one for whose end everybody waits.
        self._failures = 0
        self._knocking: asyncio.Task[None] | None = None
        self._cleaning: set[asyncio.Task[None]] = set()
        self._keeper = system.spawn(self._keep(), "perdure connections")
        # A process may end while the loop goes on, on a thread of its own.
        suppress_pending_warning(self._keeper)

    async def take(self, purpose: str = "") -> C:
        """Take a connection, for the caller alone until it is given back or dropped."""
        await self._room.acquire()
        try:
            connection = self._pop(purpose)
            if connection is None and self._failures:
                await self._knock()
                connection = self._pop(purpose)
            if self._closed:
                raise EngineClosed("the store was closed while a connection was waited for")
            return connection or await self._open()
        except BaseException:
            self._room.release()
            raise

    def _pop(self, purpose: str) -> C | None:
        last = self._last.get(purpose)
        if last is not None and last in self._idle:
            self._idle.remove(last)
            self._idle.append(last)
        while self._idle:
            connection = self._idle.pop()
            if connection.is_closed():
                continue
            if self._is_current(connection):
                return connection
            connection.terminate()
        return None

    async def _open(self) -> C:
        try:
            connection = await self._connect()
        except Exception:
            self._failures += 1
            raise
        if self._failures and (tell := self._system.telemetry.reconnected) is not None:
            tell()
        self._failures = 0
        self._opened.add(connection)
        return connection

    async def _knock(self) -> None:
        """Wait for the next attempt to reconnect, made by any task; raises what it raises."""
        if self._knocking is None:
            self._knocking = self._system.spawn(self._try_again(), "perdure reconnect")
            self._knocking.add_done_callback(_look_at)
        knocking = self._knocking
        await asyncio.wait([knocking])
        if not knocking.cancelled():
            knocking.result()

    async def _try_again(self) -> None:
        try:
            pause = min(_FIRST_PAUSE * 2 ** min(self._failures, 10), _LONGEST_PAUSE)
            await self._system.sleep(pause * (0.5 + self._system.random() / 2))
            self._idle.append(await self._open())
        finally:
            self._knocking = None

    def give(self, connection: C, purpose: str = "") -> None:
        """Give a connection back, outside of any transaction."""
        self._last[purpose] = connection
        if self._closed:
            connection.terminate()
        elif not connection.is_closed():
            self._idle.append(connection)
        self._room.release()

    def give_later(self, connection: C, clean: Callable[[C], Awaitable[bool]]) -> None:
        """Give a connection back when it is clean, which the caller does not wait for."""
        cleaning = self._system.spawn(self._clean(connection, clean), "perdure cleaning")
        self._cleaning.add(cleaning)
        cleaning.add_done_callback(self._cleaning.discard)

    async def _clean(self, connection: C, clean: Callable[[C], Awaitable[bool]]) -> None:
        is_clean = False
        try:
            # A connection that cannot be cleaned is of no use; the next one tells why, if it is the server.
            with suppress(Exception):
                is_clean = await clean(connection)
        finally:
            (self.give if is_clean else self.drop)(connection)

    def drop(self, connection: C) -> None:
        """Discard a connection in an unknown state."""
        connection.terminate()
        self._room.release()

    def opened(self) -> list[C]:
        """The connections that are idle and those in use."""
        return [connection for connection in self._opened if not connection.is_closed()]

    def flush(self) -> None:
        """Use none of the idle connections again."""
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.terminate()

    def silence(self) -> None:
        """In a forked child: cut off its copies of the connections."""
        for connection in self.opened():
            if (descriptor := connection.fileno()) >= 0:
                detach_descriptor(descriptor)

    async def close(self) -> None:
        """End every idle connection; those in use end when they are given back."""
        self._closed = True
        if asyncio.get_running_loop() is self.loop:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])
        elif not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self._keeper.cancel)

    async def _keep(self) -> None:
        # Cancelled by `close`, or by the end of the loop. If the process ends without either, nothing can be awaited.
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            self._closed = True
            for task in (self._knocking, *self._cleaning):
                if task is not None:
                    task.cancel()
            self._ended(self)
            idle, self._idle = self._idle, []
            await asyncio.gather(*(self._say_goodbye(connection) for connection in idle))
            raise


class LoopPools(Generic[C]):
    """A pool for each event loop that uses the store."""

    def __init__(
        self,
        system: System,
        connect: Callable[[], Awaitable[C]],
        say_goodbye: Callable[[C], Awaitable[None]],
        size: int,
        is_current: Callable[[C], bool],
    ) -> None:
        self._make: Callable[[], Pool[C]] = lambda: Pool(system, connect, say_goodbye, size, is_current, self._forget)
        self._pools: dict[asyncio.AbstractEventLoop, Pool[C]] = {}

    def __len__(self) -> int:
        return len(self._pools)

    def here(self) -> Pool[C]:
        """The pool of the running loop."""
        loop = asyncio.get_running_loop()
        pool = self._pools.get(loop)
        if pool is None:
            pool = self._pools[loop] = self._make()
        return pool

    def silence(self) -> None:
        """In a forked child: cut off its copies of the connections."""
        for pool in list(self._pools.values()):
            pool.silence()

    async def close(self) -> None:
        """Close all of them."""
        for pool in list(self._pools.values()):
            await pool.close()

    def _forget(self, pool: Pool[C]) -> None:
        self._pools.pop(pool.loop, None)


def _look_at(knocking: asyncio.Task[None]) -> None:
    # Retrieved because its waiters may have given up; asyncio would log the failure otherwise.
    if not knocking.cancelled():
        knocking.exception()


@asynccontextmanager
async def lend(
    pools: LoopPools[C],
    start: Callable[[C], object],
    is_left_clean: Callable[[C], bool],
    *,
    clean: Callable[[C], Awaitable[bool]] | None = None,
    check: Callable[[int], object] | None = None,
) -> AsyncGenerator[C]:
    """Lend a connection to a function of the user; it is used again only if nothing of the function is left on it.

    `check` gets its epoch first. `clean` removes what may be left, and tells whether it could.
    """
    pool = pools.here()
    connection = await pool.take()
    try:
        if check is not None:
            check(connection.epoch)
        start(connection)
        yield connection
    finally:
        if connection.is_closed() or not is_left_clean(connection):
            pool.drop(connection)
        elif clean is None:
            pool.give(connection)
        else:
            pool.give_later(connection, clean)
