"""Background loops that survive their errors.

Every long-lived task or thread runs under a `LoopGuard`. The guard logs an error (with its traceback unless it is an
outage of the database), counts it, pauses for a time that grows while errors repeat, and restarts the loop. Only a
cancellation ends the loop. A loop waits on an `Alarm`; a `Wakeup` calls back.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TypeVar

from msgspec import Struct

from perdure.core.system import Cancellable, System
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
        #: Pause after the latest error, in seconds; 0 once the loop has worked again.
        self.pause = 0.0
        self._failed_at = 0.0

    def failed(self, error: BaseException) -> float:
        """Log and count an error; returns the pause that should follow, in seconds."""
        now = self._system.monotonic()
        again = self.pause > 0 and now - self._failed_at < self.pause + CALM
        self.pause = min(self.pause * 2, LONGEST_PAUSE) if again else FIRST_PAUSE
        self._failed_at = now
        self.health.count(self.loop, error)
        if (tell := self._system.telemetry.loop_failed) is not None:
            tell(self.loop, error)
        # The message of an outage is enough; any other error is a bug and needs its traceback.
        trace = None if isinstance(error, self._outages) else error
        self._logger.error("%s failed, trying again in %.1f s: %s", self.loop, self.pause, error, exc_info=trace)
        return self.pause * (0.75 + self._system.random() / 2)

    def succeeded(self) -> None:
        """Note that the loop has worked; the next error begins a new series."""
        self.pause = 0.0

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


#: Longer timers are not set: a run that waits this long is parked.
_FURTHEST = 86_400.0


class Alarm:
    """An event with one waiter. A ring while nothing waits is kept for the next wait."""

    def __init__(self, system: System) -> None:
        self._system = system
        self._waiter: asyncio.Future[bool] | None = None
        self._rung = False

    def ring(self) -> None:
        """Wake the waiter. Call it from the waiter's own loop."""
        self._rung = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(True)

    def forget(self) -> None:
        """Discard a ring that was kept: its cause is being handled."""
        self._rung = False

    async def wait(self, seconds: float | None) -> bool:
        """Wait for a ring (True), for at most so many seconds (False); without end if None."""
        if not self._rung:
            self._waiter = asyncio.get_running_loop().create_future()
            timer = None if seconds is None else self._system.call_later(max(0.0, seconds), self._time_out)
            try:
                await self._waiter
            finally:
                self._waiter = None
                if timer is not None:
                    timer.cancel()
        rung, self._rung = self._rung, False
        return rung

    def _time_out(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(False)


class Wakeup(Struct):
    """A single timer; setting it again replaces it."""

    _system: System
    #: The timer that is set; None if there is none.
    timer: Cancellable | None = None

    def arm(self, seconds: float, callback: Callable[[], object]) -> None:
        """Call back after so many seconds."""
        self.disarm()
        if seconds < _FURTHEST:
            self.timer = self._system.call_later(seconds, callback)

    def disarm(self) -> None:
        """Cancel the callback."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
