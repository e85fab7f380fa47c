"""Background loops that survive their errors.

Every long-lived task or thread runs under a `LoopGuard`. The guard logs an error with its traceback, counts it, pauses
for a time that grows while errors repeat, and restarts the loop. Only a cancellation ends it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TypeVar

from perdure.core.system import System
from perdure.errors import EngineClosed, StoreError

T = TypeVar("T")

#: Pause after the first error, and the longest pause, in seconds.
FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0
#: Seconds without an error after which the next one begins a new series.
CALM = 60.0


class LoopHealth:
    """Errors of background loops: counts by loop, the latest error, and a lasting problem."""

    def __init__(self) -> None:
        self.errors: Counter[str] = Counter()
        #: The latest error, with the name of its loop.
        self.latest = ""
        #: A lasting condition that needs attention; empty: none.
        self.problem = ""

    @property
    def total(self) -> int:
        """Number of errors of all loops."""
        return sum(self.errors.values())

    def count(self, loop: str, error: BaseException) -> None:
        """Count an error of a loop."""
        self.errors[loop] += 1
        self.latest = f"{loop}: {type(error).__name__}: {error}"


class LoopGuard:
    """Restarts one background loop after errors."""

    def __init__(
        self,
        loop: str,
        system: System,
        health: LoopHealth,
        logger: logging.Logger,
        *,
        outages: tuple[type[Exception], ...] = (StoreError,),
    ) -> None:
        """Guard the loop of this name. Errors of the classes `outages` are logged without a traceback."""
        self.loop = loop
        self.health = health
        self._system = system
        self._logger = logger
        self._outages = outages
        self._pause = 0.0
        self._failed_at = 0.0

    def failed(self, error: BaseException) -> float:
        """Log and count an error; returns the pause that should follow, in seconds."""
        now = self._system.monotonic()
        again = self._pause > 0 and now - self._failed_at < self._pause + CALM
        self._pause = min(self._pause * 2, LONGEST_PAUSE) if again else FIRST_PAUSE
        self._failed_at = now
        self.health.count(self.loop, error)
        # The message of an outage is enough; any other error is a bug and needs its traceback.
        trace = None if isinstance(error, self._outages) else error
        self._logger.error("%s failed, trying again in %.1f s: %s", self.loop, self._pause, error, exc_info=trace)
        return self._pause * (0.75 + self._system.random() / 2)

    def succeeded(self) -> None:
        """Note that the loop has worked; the next error begins a new series."""
        self._pause = 0.0

    async def keep_going(
        self, main: Callable[[], Awaitable[T]], pause: Callable[[float], Awaitable[object]] | None = None
    ) -> T:
        """Run the loop until it returns or is cancelled; restart it after each error.

        `pause` replaces the sleep in between.
        """
        while True:
            try:
                return await main()
            except asyncio.CancelledError as error:
                task = asyncio.current_task()
                # Something that the loop awaited was cancelled, not the loop itself.
                if task is None or task.cancelling():
                    raise
                seconds = self.failed(error)
            except EngineClosed:
                self._logger.error("%s ends: the engine was closed", self.loop)
                raise
            except Exception as error:
                seconds = self.failed(error)
            await (self._system.sleep if pause is None else pause)(seconds)
