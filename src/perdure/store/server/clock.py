"""The server's time, known here without asking.

Each answer that carries the server's time bounds how far its clock is from our monotonic one: the answer was written after the
question left and before it came back. The bounds are narrowed by every measurement and replaced when they contradict it, which
means that a clock was set. The earliest possible time is the one that is told, so that nothing is ever ahead of the server.

A server that was set back, or replaced by one whose clock is behind, is followed back: a process that kept the later time would take every worker for
overdue, since heartbeats are by the server's clock. A measurement that is old is repeated before anything is written: clocks drift apart, and a process
that was suspended has a clock that stood still.
"""

from __future__ import annotations

from collections.abc import Callable

from perdure.core.system import System

#: By how much the server has to be behind the time that was told to be followed back, and how old a measurement may be, in microseconds.
SET_BACK = 100_000
OLD = 60_000_000


class ServerClock:
    """Never goes back within this process, unless the server does. Where `told` is given, it is the time (for tests) and the server's is ignored."""

    def __init__(self, system: System, told: Callable[[], int] | None) -> None:
        self._system = system
        self._told = told
        self._earliest = 0
        self._latest = 0
        self._measured = False
        self._last = 0
        #: When it was measured last, by our wall clock: our monotonic one may not go on while we are suspended.
        self._measured_at = 0

    def now(self) -> int:
        """Microseconds since the epoch."""
        if self._told is not None:
            now = self._told()
        elif self._measured:
            now = self._earliest + self._monotonic()
        else:
            # A guess, which must not hold back the server's time if that turns out to be earlier.
            return self._system.now()
        # Not by `max`: this is asked for with every batch of steps.
        if now > self._last:
            self._last = now
        return self._last

    def start_measurement(self) -> int:
        """To be called before a question that will be answered with the server's time."""
        return self._monotonic()

    def finish_measurement(self, asked: int, server: int) -> int:
        """Take in an answer; the time."""
        earliest, latest = server - self._monotonic(), server - asked
        if self._measured and earliest <= self._latest and latest >= self._earliest:
            earliest, latest = max(earliest, self._earliest), min(latest, self._latest)
        self._earliest, self._latest, self._measured = earliest, latest, True
        self._measured_at = self._system.now()
        if self._told is None and latest + self._monotonic() < self._last - SET_BACK:
            self._last = 0
        return self.now()

    @property
    def is_old(self) -> bool:
        """Whether to measure again before the time is relied on."""
        return self._told is None and abs(self._system.now() - self._measured_at) > OLD

    @property
    def known(self) -> int | None:
        """The time, unless it would be a guess."""
        return self.now() if self._measured or self._told is not None else None

    @property
    def told(self) -> int | None:
        """What statements are to take for the time instead of the server's."""
        return None if self._told is None else self.now()

    def _monotonic(self) -> int:
        return int(self._system.monotonic() * 1_000_000)
