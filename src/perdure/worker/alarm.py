"""Waiting until told, or until some time has passed; and being called back once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from msgspec import Struct

from perdure.core.system import Cancellable, System

#: Timers further away than this are not set: what waits that long is not waiting here.
_FURTHEST = 86_400.0


class Alarm:
    """One waiter, woken by `ring` from its own loop. A ring while nobody waits is kept for the next wait."""

    def __init__(self, system: System) -> None:
        self._system = system
        self._waiter: asyncio.Future[bool] | None = None
        self._rung = False

    def ring(self) -> None:
        """Wake the waiter."""
        self._rung = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(True)

    def forget(self) -> None:
        """Do not keep a ring: what it was about is being looked at."""
        self._rung = False

    async def wait(self, seconds: float | None) -> bool:
        """Wait for a ring (True), at most so long (False); for ever with None."""
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
    """One callback at a time; setting it anew replaces it."""

    _system: System
    #: What is set; None for nothing.
    timer: Cancellable | None = None

    def arm(self, seconds: float, callback: Callable[[], object]) -> None:
        """Call back after so long."""
        self.disarm()
        if seconds < _FURTHEST:
            self.timer = self._system.call_later(seconds, callback)

    def disarm(self) -> None:
        """Do not call back."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
