"""Quarantine of suspects: runs that may have killed their workers are executed apart from others.

A worker that holds nothing claims a group of suspects and nothing else until the group is gone, for at most a lease: a
suspect that lives that long does no harm. Then it claims other runs for as long as the group took, so that neither
starve. A worker that holds other runs leaves its free slots empty for a while, so that it can claim suspects; if that
was in vain, for twice as long the next time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

from perdure.core.model.claim import SUSPECT_AFTER, ClaimedRun
from perdure.core.system import System

#: Seconds for which free slots stay empty, at first and at most; and the pause after that, as a multiple.
SHORTEST_STAND_BACK = 5.0
LONGEST_STAND_BACK = 60.0
PAUSE_SHARE = 2.0


class Quarantine:
    """Decides when a worker claims suspects."""

    def __init__(self, system: System, lease: float) -> None:
        self._system = system
        self._lease = lease
        #: Suspects that are held, and since when.
        self._suspects: frozenset[str] = frozenset()
        self._since = 0.0
        #: Time until which other runs are claimed.
        self._others_until = 0.0
        self._stand_back = SHORTEST_STAND_BACK
        self._stand_back_until = 0.0
        self._stand_back_again = 0.0

    @property
    def is_due(self) -> bool:
        """True if suspects may be claimed now, if there are any."""
        return self._system.monotonic() >= self._others_until

    @property
    def stands_back(self) -> bool:
        """True if free slots stay empty, so that suspects can be claimed."""
        return self._system.monotonic() < self._stand_back_until

    @property
    def ends_in(self) -> float:
        """Seconds after which free slots are filled again."""
        ends = self._since + self._lease if self._suspects else self._stand_back_until
        left = ends - self._system.monotonic()
        return left if left > 0 else inf

    def note_claim(self, runs: Sequence[ClaimedRun]) -> None:
        """Note a claim. Suspects come in a claim of their own, and the claim itself is counted in `claims`."""
        suspects = frozenset(one.run.id for one in runs if one.run.claims > SUSPECT_AFTER)
        if suspects:
            self._suspects, self._since = suspects, self._system.monotonic()
            self._stand_back, self._stand_back_until, self._stand_back_again = SHORTEST_STAND_BACK, 0.0, 0.0

    def is_active(self, holds: Callable[[str], bool]) -> bool:
        """True if suspects are held, beside which nothing may be claimed."""
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
        """Leave free slots empty for a while because suspects wait for a worker that holds nothing."""
        now = self._system.monotonic()
        if now < self._stand_back_again or not self.is_due:
            return
        length = self._stand_back * (0.75 + 0.5 * self._system.random())
        self._stand_back_until = now + length
        self._stand_back_again = self._stand_back_until + PAUSE_SHARE * length
        self._stand_back = min(LONGEST_STAND_BACK, 2 * self._stand_back)
