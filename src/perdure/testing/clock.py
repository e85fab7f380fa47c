"""A clock that stands still until it is told to move.

`VirtualClock` is a `System`: everything that an engine does by the clock waits on its heap of timers, and runs on the
event loop that is there. Randomness comes from a seed, so the same test draws the same numbers. Threads are real.
"""

from __future__ import annotations

import asyncio
import heapq
import random
from collections.abc import Awaitable, Callable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from perdure.core.system import Background, Cancellable, CpuClock, CrashPoint, LoopTrace, NoTicker, Ticker
from perdure.core.telemetry import Telemetry
from perdure.host import Host

T = TypeVar("T")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Timer:
    """A callback for later."""

    __slots__ = ("_order", "callback", "due")

    def __init__(self, due: int, order: int, callback: Callable[[], object]) -> None:
        self.due = due
        self._order = order
        self.callback: Callable[[], object] | None = callback

    def __lt__(self, other: Timer) -> bool:
        return (self.due, self._order) < (other.due, other._order)

    def cancel(self) -> None:
        """Do not call back any more."""
        self.callback = None


class VirtualClock:
    """See the module."""

    crash_point: CrashPoint | None = None

    def __init__(self, start: datetime, seed: int = 0) -> None:
        self._now = (start - _EPOCH) // timedelta(microseconds=1)
        self._timers: list[Timer] = []
        self._count = 0
        self._random = random.Random(seed)  # noqa: S311 - a test's randomness is to be repeatable
        self._host = Host()
        self.telemetry = Telemetry()

    # moving

    def next_due(self) -> int | None:
        """When the next timer is due, in microseconds since the epoch; None if there is none."""
        while self._timers and self._timers[0].callback is None:
            heapq.heappop(self._timers)
        return self._timers[0].due if self._timers else None

    def move_to(self, moment: int) -> None:
        """Let it be `moment`, and have the timers that are due by then called back, in order, by the running loop."""
        loop = asyncio.get_running_loop()
        self._now = max(self._now, moment)
        while (due := self.next_due()) is not None and due <= self._now:
            loop.call_soon(_call, heapq.heappop(self._timers))

    def moment(self) -> datetime:
        """The current time."""
        return _EPOCH + timedelta(microseconds=self._now)

    # System

    def now(self) -> int:
        """Virtual microseconds since the epoch."""
        return self._now

    def monotonic(self) -> float:
        """Virtual seconds."""
        return self._now / 1e6

    def entropy(self, size: int) -> bytes:
        """Bytes that follow from the seed."""
        return self._random.randbytes(size)

    def random(self) -> float:
        """A number in [0, 1) that follows from the seed."""
        return self._random.random()

    async def sleep(self, seconds: float) -> None:
        """Wait until the clock has been moved so far."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        timer = self.call_later(seconds, lambda: _resolve(over))
        try:
            await over
        finally:
            timer.cancel()

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Cancellable:
        """Call back once the clock has been moved so far."""
        if seconds <= 0:
            return asyncio.get_running_loop().call_soon(callback)
        self._count += 1
        timer = Timer(self._now + max(1, round(seconds * 1e6)), self._count, callback)
        heapq.heappush(self._timers, timer)
        return timer

    def spawn(self, coroutine: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """A task of the running loop."""
        return asyncio.get_running_loop().create_task(coroutine, name=name)

    def in_thread(self, function: Callable[[], T]) -> Awaitable[T]:
        """A real thread."""
        return self._host.in_thread(function)

    def end_idle_threads(self) -> None:
        """End the real threads that wait for a blocking function."""
        self._host.end_idle_threads()

    def background(self, main: Callable[[], Coroutine[Any, Any, None]], name: str) -> Background:
        """A task of the running loop: a thread would not keep to the clock."""
        return BackgroundTask(self.spawn(main(), name))

    def watch_file(self, path: str, written: Callable[[], object]) -> None:
        """Watch nothing: files are not written in virtual time."""

    def ticker(self, tick: Callable[[CpuClock], float], name: str, trace: LoopTrace) -> Ticker:
        """Nothing: real time means nothing here."""
        return NoTicker()


class BackgroundTask(Background):
    """A background that is a task of the same loop."""

    def __init__(self, task: asyncio.Task[None]) -> None:
        self._task = task

    async def stop(self) -> None:
        """Cancel it and wait for its end."""
        self._task.cancel()
        await asyncio.wait([self._task])


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _call(timer: Timer) -> None:
    # Looked at again: a timer that was called before it may have cancelled it.
    if timer.callback is not None:
        timer.callback()
