"""The world as a simulated process sees it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import copy_context
from random import Random
from typing import Any, TypeVar

from perdure.core.system import Background, Cancellable, System
from perdure.testing.clock import BackgroundTask
from perdure.testing.simulation.loop import LANE, Process, SimLoop

T = TypeVar("T")

#: When every simulation begins: midnight, the first of January 2026.
EPOCH = 1_767_225_600_000_000


class SimSystem(System):
    """One process's clock, randomness, tasks and threads; `on_crash_point` decides where it dies."""

    def __init__(
        self, loop: SimLoop, process: Process, rng: Random, on_crash_point: Callable[[Process, str], None]
    ) -> None:
        self.process = process
        self._loop = loop
        self._rng = rng
        self._on_crash_point = on_crash_point

    def now(self) -> int:
        """Virtual time."""
        return EPOCH + self._loop.now()

    def monotonic(self) -> float:
        """Virtual time."""
        return self._loop.time()

    def entropy(self, size: int) -> bytes:
        """Bytes that follow from the seed."""
        return self._rng.randbytes(size)

    def random(self) -> float:
        """A number that follows from the seed."""
        return self._rng.random()

    async def sleep(self, seconds: float) -> None:
        """Wait in virtual time."""
        await asyncio.sleep(seconds)

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Cancellable:
        """Call back in virtual time."""
        timer: Cancellable = self._loop.call_later(seconds, callback)
        return timer

    def spawn(self, coroutine: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """A task on the caller's lane."""
        return self._loop.create_task(coroutine, name=name)

    def in_thread(self, function: Callable[[], T]) -> Awaitable[T]:
        """Nothing in a simulation blocks."""
        raise NotImplementedError("a simulated process has no real threads")

    def background(self, main: Callable[[], Coroutine[Any, Any, None]], name: str) -> Background:
        """A task on a lane of its own."""
        context = copy_context()
        context.run(LANE.set, self._loop.new_lane(f"{self.process.name}.{name}", self.process))
        return BackgroundTask(self._loop.create_task(main(), name=name, context=context))

    def crash_point(self, name: str) -> None:
        """A place where the process may die."""
        self._on_crash_point(self.process, name)
