"""Timers of a worker's loops: `Alarm` to wait on, `Wakeup` to be called back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from msgspec import Struct

from perdure.core.system import Cancellable, System

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
