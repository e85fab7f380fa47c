"""Suspects in the hands of a worker: nothing is taken beside them, and neither they nor other runs starve.

A worker that holds nothing takes a group of suspects (see `store.poison`) and nothing else until the group is gone, for a lease at the most: one that lives on
for so long does no harm. After that it is the turn of other runs for as long as the group had. A worker that holds other runs leaves its slots
empty for a while, so that it can take suspects; if that was in vain, for twice as long the next time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

from perdure.core.model.claim import SUSPECT_AFTER, ClaimedRun
from perdure.core.system import System

#: For how long slots are left empty, in seconds, at first and at the most, and how much longer they are not after that.
SHORTEST_STAND_BACK = 5.0
LONGEST_STAND_BACK = 60.0
PAUSE_SHARE = 2.0


class Quarantine:
    """See the module."""

    def __init__(self, system: System, lease: float) -> None:
        self._system = system
        self._lease = lease
        #: The suspects at hand, and since when.
        self._suspects: frozenset[str] = frozenset()
        self._since = 0.0
        #: Until when it is the turn of other runs.
        self._others_until = 0.0
        self._stand_back = SHORTEST_STAND_BACK
        self._stand_back_until = 0.0
        self._stand_back_again = 0.0

    @property
    def is_due(self) -> bool:
        """Whether it is the turn of suspects, if there are any."""
        return self._system.monotonic() >= self._others_until

    @property
    def stands_back(self) -> bool:
        """Whether slots are left empty, so that suspects can be taken."""
        return self._system.monotonic() < self._stand_back_until

    @property
    def ends_in(self) -> float:
        """Seconds after which slots are filled again, whatever is in the others."""
        ends = self._since + self._lease if self._suspects else self._stand_back_until
        left = ends - self._system.monotonic()
        return left if left > 0 else inf

    def took(self, runs: Sequence[ClaimedRun]) -> None:
        """Runs were claimed. Suspects come in a claim of their own, which has counted itself."""
        suspects = frozenset(one.run.id for one in runs if one.run.claims > SUSPECT_AFTER)
        if suspects:
            self._suspects, self._since = suspects, self._system.monotonic()
            self._stand_back, self._stand_back_until, self._stand_back_again = SHORTEST_STAND_BACK, 0.0, 0.0

    def lasts(self, holds: Callable[[str], bool]) -> bool:
        """Whether suspects are at hand, beside which nothing is to be taken."""
        if not self._suspects:
            return False
        now = self._system.monotonic()
        if now < self._since + self._lease:
            self._suspects = frozenset(run_id for run_id in self._suspects if holds(run_id))
            if self._suspects:
                return True
        self._suspects = frozenset()
        self._others_until = now + (now - self._since)
        return False

    def make_way(self) -> None:
        """Suspects wait for a worker that holds nothing: leave the slots empty for a while, unless it is the turn of other runs."""
        now = self._system.monotonic()
        if now < self._stand_back_again or not self.is_due:
            return
        length = self._stand_back * (0.75 + 0.5 * self._system.random())
        self._stand_back_until = now + length
        self._stand_back_again = self._stand_back_until + PAUSE_SHARE * length
        self._stand_back = min(LONGEST_STAND_BACK, 2 * self._stand_back)
