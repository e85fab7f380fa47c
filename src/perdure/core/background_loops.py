"""Background loops that survive their errors.

Every long-lived task or thread runs under a `LoopGuard`. An error is logged with its traceback at once, counted, and followed by a pause that
grows while errors repeat; then the loop goes on. Only a cancellation ends it.
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

#: The pause after the first error and the longest one, in seconds.
FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0
#: An error this long after the one before is the first of a new series, in seconds.
CALM = 60.0


class LoopHealth:
    """Errors of background loops: how many of each loop, the latest, and what is wrong for good."""

    def __init__(self) -> None:
        self.errors: Counter[str] = Counter()
        #: The latest error, with the name of its loop.
        self.latest = ""
        #: A lasting condition that a person should know of; empty: none.
        self.problem = ""

    @property
    def total(self) -> int:
        """Errors of all loops together."""
        return sum(self.errors.values())

    def count(self, loop: str, error: BaseException) -> None:
        """Add an error of a loop."""
        self.errors[loop] += 1
        self.latest = f"{loop}: {type(error).__name__}: {error}"


class LoopGuard:
    """Keeps one background loop alive."""

    def __init__(self, loop: str, system: System, health: LoopHealth, logger: logging.Logger) -> None:
        self.loop = loop
        self.health = health
        self._system = system
        self._logger = logger
        self._pause = 0.0
        self._failed_at = 0.0

    def failed(self, error: BaseException) -> float:
        """Log and count an error; the pause that should follow, in seconds."""
        now = self._system.monotonic()
        again = self._pause > 0 and now - self._failed_at < self._pause + CALM
        self._pause = min(self._pause * 2, LONGEST_PAUSE) if again else FIRST_PAUSE
        self._failed_at = now
        self.health.count(self.loop, error)
        # The database's trouble says all there is to say; anything else is ours, and needs its traceback.
        trace = None if isinstance(error, StoreError) else error
        self._logger.error("%s failed, trying again in %.1f s: %s", self.loop, self._pause, error, exc_info=trace)
        return self._pause * (0.75 + self._system.random() / 2)

    def succeeded(self) -> None:
        """The loop has done what it is there for; the next error is the first of a new series."""
        self._pause = 0.0

    async def keep_going(
        self, main: Callable[[], Awaitable[T]], pause: Callable[[float], Awaitable[object]] | None = None
    ) -> T:
        """Run the loop until it returns or is cancelled, again after each error. `pause` replaces the sleep in between."""
        while True:
            try:
                return await main()
            except asyncio.CancelledError as error:
                task = asyncio.current_task()
                # A cancellation of something that the loop waited for, and not of the loop.
                if task is None or task.cancelling():
                    raise
                seconds = self.failed(error)
            except EngineClosed:
                self._logger.error("%s ends: the engine was closed", self.loop)
                raise
            except Exception as error:
                seconds = self.failed(error)
            await (self._system.sleep if pause is None else pause)(seconds)
