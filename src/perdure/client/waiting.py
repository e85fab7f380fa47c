"""Waiting from outside: for as long as the caller likes, and for news of what runs show."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, TypeVar

from perdure.core.system import System
from perdure.core.time.duration import Duration, seconds
from perdure.errors import StoreError
from perdure.store.contract import Change, Store

T = TypeVar("T")

SHORTEST_POLL = 0.005
#: So that whoever waits learns soon that the engine was closed.
LONGEST_POLL = 2.0


async def within(
    system: System, work: Callable[[], Coroutine[Any, Any, T]], name: str, timeout: Duration | None, too_late: str
) -> T:
    """Do something, or raise `TimeoutError` after `timeout` on the system's clock."""
    limit = None if timeout is None else seconds(timeout)
    waiting = system.spawn(work(), name)
    timer = None if limit is None else system.call_later(limit, waiting.cancel)
    try:
        return await waiting
    except asyncio.CancelledError:
        current = asyncio.current_task()
        if timeout is None or (current is not None and current.cancelling()):
            waiting.cancel()
            raise
        raise TimeoutError(f"{too_late} within {timeout!r}") from None
    finally:
        if timer is not None:
            timer.cancel()


class News:
    """Says when it is worth looking again at what a run shows: something was shown or has finished, here or elsewhere."""

    def __init__(self, store: Store, system: System) -> None:
        self._store = store
        self._system = system
        self._loop = asyncio.get_running_loop()
        self._rung: asyncio.Future[bool] | None = None
        self._told = False
        self._replaced = False
        self._poll = SHORTEST_POLL
        self._unsubscribe = store.subscribe(self._on_change)

    def __enter__(self) -> News:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._unsubscribe()

    def found(self) -> None:
        """Something was there, so that there may be more soon."""
        self._poll = SHORTEST_POLL

    def replaced(self) -> bool:
        """Whether the database was replaced since this was asked last, and may lack what was seen or sent."""
        replaced, self._replaced = self._replaced, False
        return replaced

    async def arrive(self) -> None:
        """Wait. Looking before is safe: what came meanwhile counts."""
        while not self._told:
            if not await self._ring_or_timeout():
                try:
                    # Whoever rings meanwhile is not to be overruled.
                    if await self._store.changed():
                        self._told = True
                except StoreError:
                    self._told = True
            self._poll = min(1.5 * self._poll, self._store.poll_interval, LONGEST_POLL)
        self._told = False

    async def _ring_or_timeout(self) -> bool:
        rung: asyncio.Future[bool] = self._loop.create_future()
        self._rung = rung
        timer = self._system.call_later(self._poll, lambda: self._wake(told=False))
        try:
            return await rung
        finally:
            timer.cancel()
            self._rung = None

    def _on_change(self, change: Change) -> None:
        if change & Change.REPLACED:
            self._replaced = True
        if change & (Change.OUTPUT | Change.FINISHED | Change.REPLACED) and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._ring)

    def _ring(self) -> None:
        self._told = True
        self._wake(told=True)

    def _wake(self, *, told: bool) -> None:
        if self._rung is not None and not self._rung.done():
            self._rung.set_result(told)
