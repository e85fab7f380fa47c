"""The world as a simulated process sees it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import copy_context
from random import Random
from typing import Any, TypeVar

from msgspec import Struct

from perdure.core.system import Background, Cancellable, CpuClock, LoopTrace, NoTicker, System, Ticker
from perdure.core.telemetry import Telemetry
from perdure.testing.clock import BackgroundTask
from tests.simulation.loop import LANE, Process, SimLoop

T = TypeVar("T")

#: When every simulation begins: midnight, the first of January 2026.
EPOCH = 1_767_225_600_000_000


class Clocks(Struct, frozen=True):
    """The clocks of one process: how far its wall clock is ahead of the database's, in microseconds, and how fast both
    of its own go."""

    ahead: int = 0
    pace: float = 1.0


TRUE = Clocks()


class SimSystem(System):
    """One process's clocks, randomness, tasks and threads; `on_crash_point` decides where it dies."""

    def __init__(
        self,
        loop: SimLoop,
        process: Process,
        rng: Random,
        on_crash_point: Callable[[Process, str], None],
        clocks: Clocks = TRUE,
    ) -> None:
        self.clocks = clocks
        self.process = process
        self._loop = loop
        self._rng = rng
        self._on_crash_point = on_crash_point
        self.telemetry = Telemetry()

    def now(self) -> int:
        """Virtual time, by the process's own wall clock."""
        if self.clocks is TRUE:
            return EPOCH + self._loop.now()
        return EPOCH + self.clocks.ahead + int(self._loop.now() * self.clocks.pace)

    def monotonic(self) -> float:
        """Virtual time, as fast as the process's own clock goes."""
        return self._loop.time() * self.clocks.pace

    def entropy(self, size: int) -> bytes:
        """Bytes that follow from the seed."""
        return self._rng.randbytes(size)

    def random(self) -> float:
        """A number that follows from the seed."""
        return self._rng.random()

    async def sleep(self, seconds: float) -> None:
        """Wait in virtual time."""
        await asyncio.sleep(seconds / self.clocks.pace)

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Cancellable:
        """Call back in virtual time."""
        timer: Cancellable = self._loop.call_later(seconds / self.clocks.pace, callback)
        return timer

    def spawn(self, coroutine: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """A task on the caller's lane."""
        return self._loop.create_task(coroutine, name=name)

    def in_thread(self, function: Callable[[], T]) -> Awaitable[T]:
        """Nothing in a simulation blocks."""
        raise NotImplementedError("a simulated process has no real threads")

    def end_idle_threads(self) -> None:
        """Do nothing: a simulated process has no threads."""

    def background(self, main: Callable[[], Coroutine[Any, Any, None]], name: str) -> Background:
        """A task on a lane of its own."""
        context = copy_context()
        context.run(LANE.set, self._loop.new_lane(f"{self.process.name}.{name}", self.process))
        return BackgroundTask(self._loop.create_task(main(), name=name, context=context))

    def watch_file(self, path: str, written: Callable[[], object]) -> None:
        """Watch nothing: files are not written in virtual time."""

    def ticker(self, tick: Callable[[CpuClock], float], name: str, trace: LoopTrace) -> Ticker:
        """Nothing: a simulation has no real time."""
        return NoTicker()

    def crash_point(self, name: str) -> None:
        """A place where the process may die."""
        self._on_crash_point(self.process, name)
