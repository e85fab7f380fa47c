"""The server's time, known without asking.

Each answer that carries the server's time bounds the distance between its clock and our monotonic one: the answer was
written after the question left and before it arrived. Every measurement narrows the bounds, or replaces them if it
contradicts them, which means that a clock was set. The clock reports the earliest possible time, so that this process
is never ahead of the server.

If the server was set back, or replaced by one whose clock is behind, the clock follows it: a process that kept the
later time would take every worker for overdue, since heartbeats use the server's clock. An old measurement is repeated
before anything is written, because clocks drift, and the clock of a suspended process stood still.
"""

from __future__ import annotations

from collections.abc import Callable

from perdure.core.audit import Audit
from perdure.core.system import System
from perdure.store.sql.dialect import TransactionLog

#: The clock follows a server that is behind by more than this; and the age at which a measurement is repeated; both in
#: microseconds.
SET_BACK = 100_000
OLD = 60_000_000


class ServerClock:
    """The server's time; goes back only if the server does. `told` replaces the server's clock in tests."""

    def __init__(self, system: System, told: Callable[[], int] | None) -> None:
        self._system = system
        self._told = told
        self._earliest = 0
        self._latest = 0  # equivalent: constant: not read before it is measured
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
        """Start of a measurement; call it before a query that returns the server's time."""
        return self._monotonic()

    def finish_measurement(self, asked: int, server: int) -> int:
        """Apply the server's time from an answer; returns the time."""
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
        """True if the time must be measured again before it is relied on."""
        return self._told is None and abs(self._system.now() - self._measured_at) > OLD

    @property
    def known(self) -> int | None:
        """The time, unless it would be a guess."""
        return self.now() if self._measured or self._told is not None else None

    @property
    def told(self) -> int | None:
        """Time that statements use instead of the server's, in tests."""
        return None if self._told is None else self.now()

    def _monotonic(self) -> int:
        return int(self._system.monotonic() * 1_000_000)


class ServerTransactionLog(TransactionLog):
    """The log of a transaction whose time is the server's."""

    def __init__(self, clock: ServerClock, actor: str, audit: Audit, *, has_observers: bool) -> None:
        super().__init__(actor, audit, has_observers=has_observers)
        self._clock = clock
        self._now = 0

    @property
    def now(self) -> int:
        """The server's time at the first look at it since rows were last locked."""
        if self._now == 0:
            self._now = self._clock.now()
        return self._now

    def locked(self) -> None:
        """Rows were locked just now, so it is later than it was."""
        self._now = 0
