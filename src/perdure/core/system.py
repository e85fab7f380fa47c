"""The world outside the engine, as one object: time, randomness, tasks, threads, crash points.

Nothing else in Perdure reads a clock, draws a random number, spawns a task or starts a thread. Hand the engine another
`System` and the whole worker runs on a virtual clock under a seed, or dies at a chosen line.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Cancellable(Protocol):
    """Something scheduled that can be called off."""

    def cancel(self) -> object:
        """Call it off; harmless when it is over."""


class Background(Protocol):
    """A loop of its own, beside the main one."""

    async def stop(self) -> None:
        """Cancel what runs there and wait for its end."""


class System(Protocol):
    """What the engine may ask of the world."""

    def now(self) -> int:
        """Wall-clock time in microseconds since the epoch, UTC."""

    def monotonic(self) -> float:
        """Seconds on a clock that never steps back and goes on while the machine sleeps."""

    def entropy(self, size: int) -> bytes:
        """Random bytes, fit for ids and nonces."""

    def random(self) -> float:
        """A random number in [0, 1), for jitter."""

    async def sleep(self, seconds: float) -> None:
        """Wait on this system's clock."""

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Cancellable:
        """Call back on the current event loop after a while."""

    def spawn(self, coroutine: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Run a coroutine beside the caller. The caller keeps the task and awaits or cancels it."""

    def in_thread(self, function: Callable[[], T]) -> Awaitable[T]:
        """Run a blocking function (the database's) without blocking the event loop."""

    def background(self, main: Callable[[], Coroutine[Any, Any, None]], name: str) -> Background:
        """Run a coroutine on a thread and an event loop of its own, so that it goes on while the main loop is blocked."""

    def crash_point(self, name: str) -> None:
        """Say that execution is here. Does nothing in production; a test may end the process."""
