"""A few connections for one event loop.

A connection belongs to the loop that opened it, so each loop that uses the store has a pool of its own; a heartbeat on its own
loop therefore never waits for connections that others hold. When a loop ends, its connections end with it. A
connection comes back as it went, so that there is nothing to reset between two uses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

from perdure.core.errors import EngineClosed
from perdure.core.system import System


class Pooled(Protocol):
    """What a pool needs to know of a connection."""

    def is_closed(self) -> bool:
        """Whether it is over."""

    def terminate(self) -> None:
        """End it at once."""


C = TypeVar("C", bound=Pooled)


class Pool(Generic[C]):
    """Connections, the most recently used first."""

    def __init__(
        self,
        system: System,
        connect: Callable[[], Awaitable[C]],
        say_goodbye: Callable[[C], Awaitable[None]],
        size: int,
        ended: Callable[[Pool[C]], object],
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self._connect = connect
        self._say_goodbye = say_goodbye
        self._ended = ended
        self._room = asyncio.Semaphore(size)
        self._idle: list[C] = []
        self._closed = False
        self._keeper = system.spawn(self._keep(), "perdure connections")

    async def take(self) -> C:
        """A connection, for the caller alone until it is given back or dropped."""
        await self._room.acquire()
        try:
            while self._idle:
                connection = self._idle.pop()
                if not connection.is_closed():
                    return connection
            if self._closed:
                raise EngineClosed("The store was closed while a connection was waited for.")
            return await self._connect()
        except BaseException:
            self._room.release()
            raise

    def give(self, connection: C) -> None:
        """Back, in order and outside of any transaction."""
        if self._closed:
            connection.terminate()
        elif not connection.is_closed():
            self._idle.append(connection)
        self._room.release()

    def drop(self, connection: C) -> None:
        """Back, in an unknown state: it is not used again."""
        connection.terminate()
        self._room.release()

    def flush(self) -> None:
        """Use none of the idle connections again."""
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.terminate()

    async def close(self) -> None:
        """End every idle connection; those in use end when they are given back."""
        self._closed = True
        if asyncio.get_running_loop() is self.loop:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])
        elif not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self._keeper.cancel)

    async def _keep(self) -> None:
        # Cancelled by `close`, or by the loop's own end.
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self._closed = True
            self._ended(self)
            idle, self._idle = self._idle, []
            await asyncio.gather(*(self._say_goodbye(connection) for connection in idle))
