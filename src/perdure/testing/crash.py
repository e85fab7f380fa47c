"""A world that ends, or stands still, at a chosen crash point.

Give a `CrashingHost` to an engine in a process of its own. It is the real world, except that it counts the crash points
that execution passes and sends its own process a signal at the one that the trap names: SIGKILL is a crash, SIGSTOP a
worker that freezes past its lease and comes back. Without a trap it only writes down what it passes, which is the list
of traps to try.
"""

from __future__ import annotations

import signal
import threading
from collections import Counter

from msgspec import Struct

from perdure.host import Host


class Trap(Struct, frozen=True, kw_only=True):
    """Place to signal at: the `hit`-th passing (from 1) of the point, or of any point at all if none is named."""

    point: str | None = None
    hit: int = 1
    signal: int = signal.SIGKILL

    def __str__(self) -> str:
        return f"{self.point or 'any point'} #{self.hit} ({signal.Signals(self.signal).name})"


class CrashingHost(Host):
    """The real world with at most one trap in it, which goes off once."""

    def __init__(self, trap: Trap | None = None) -> None:
        super().__init__()
        #: The points passed, in order.
        self.passed: list[str] = []
        self._trap = trap
        self._counts: Counter[str] = Counter()
        # Points are passed by the store's threads as well as by the event loops.
        self._lock = threading.Lock()
        self.crash_point = self.pass_point

    def pass_point(self, name: str) -> None:
        """Pass a point, unless it is the one."""
        with self._lock:
            self.passed.append(name)
            self._counts[name] += 1
            trap = self._trap
            if trap is None or trap.point not in (None, name):
                return
            if (len(self.passed) if trap.point is None else self._counts[name]) != trap.hit:
                return
            self._trap = None
        self.caught(name)
        # To the thread, not to the process: that one may be stopped by way of another thread, and this one would go on
        # a while.
        signal.pthread_kill(threading.get_ident(), trap.signal)

    def caught(self, name: str) -> None:
        """Called right before the signal; a test may write down that it fired."""
