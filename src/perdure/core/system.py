"""`System`: clocks, randomness, tasks, threads and crash points, behind one interface.

Nothing else in Perdure reads a clock, draws a random number, spawns a task or starts a thread. With another `System`, a
whole worker runs on a virtual clock under a seed, or dies at a chosen line.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol, TypeVar

T = TypeVar("T")

CrashPoint = Callable[[str], object]


class Cancellable(Protocol):
    """A scheduled call that can be cancelled."""

    def cancel(self) -> object:
        """Cancel the call; harmless after it was made."""


class Background(Protocol):
    """An event loop on its own thread."""

    async def stop(self) -> None:
        """Cancel the loop's main coroutine and wait for its end."""


class NoTicker(Background):
    """A ticker that never calls."""

    async def stop(self) -> None:
        """Do nothing."""


class System(Protocol):
    """The engine's interface to the operating system."""

    def now(self) -> int:
        """Wall-clock time in microseconds since the epoch, UTC."""

    def monotonic(self) -> float:
        """Seconds on a clock that never steps back and goes on while the machine sleeps."""

    def entropy(self, size: int, /) -> bytes:
        """Random bytes, fit for ids and nonces."""

    def random(self) -> float:
        """A random number in [0, 1), for jitter."""

    async def sleep(self, seconds: float) -> None:
        """Wait, on this system's clock."""

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Cancellable:
        """Call back on the current event loop after a delay."""

    def spawn(self, coroutine: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Run a coroutine beside the caller. The caller keeps the task and awaits or cancels it."""

    def in_thread(self, function: Callable[[], T]) -> Awaitable[T]:
        """Run a blocking function (the database's) without blocking the event loop."""

    def background(self, main: Callable[[], Coroutine[Any, Any, None]], name: str) -> Background:
        """Run a coroutine on its own thread and event loop, so that it continues while the main loop is blocked."""

    def ticker(self, tick: Callable[[float], float], name: str) -> Background:
        """Call a function again and again from a thread of its own, in real time.

        It gets the CPU seconds that this process has used since the last call, and returns the seconds until the next.
        A system with a clock of its own never calls it.
        """

    @property
    def crash_point(self) -> CrashPoint | None:
        """Called with the name of each point at which a test may end the process; None outside of tests."""
