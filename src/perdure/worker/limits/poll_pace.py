"""When one worker looks at the gates: in time where it is the one that serves them, and later where others do."""

from __future__ import annotations

from perdure.core.limits.admission import Admitted
from perdure.core.model.run import FAR
from perdure.core.system import System

#: Gates that are due and have nobody for this worker are looked at again after this, which grows, in seconds.
_SHORTEST, _LONGEST = 0.05, 2.0
#: Where another worker serves a gate, this one looks so much later than it could.
_BEHIND = 0.3
#: Where another worker has a gate locked, what it does not see to is looked at after this, which grows, in seconds.
_SHORTEST_OFF, _LONGEST_OFF = 0.01, 0.32


class Attendance:
    """See the module."""

    def __init__(self, system: System) -> None:
        self._system = system
        self._serves = False
        self._patience = _SHORTEST
        self._patient_until = 0.0
        self._off = _SHORTEST_OFF
        self._off_until = 0.0

    @property
    def off_for(self) -> float:
        """For how long gates are left to those who have them locked, in seconds."""
        return self._off_until - self._system.monotonic()

    @property
    def is_patient(self) -> bool:
        """Whether gates that are due were looked at a moment ago, in vain."""
        return self._system.monotonic() < self._patient_until

    def saw(self, admitted: Admitted, *, arrived: bool, due: bool) -> None:
        """What came of a look."""
        passed = bool(admitted.runs or admitted.called)
        now = self._system.monotonic()
        if passed or due:
            self._serves = passed
        if passed or arrived:
            self._patience = _SHORTEST
        elif due:
            self._patience = min(_LONGEST, 2 * self._patience)
            self._patient_until = now + self._patience
        if admitted.busy:
            self._off_until = now + self._off * (0.5 + self._system.random())
            self._off = _SHORTEST_OFF if passed else min(_LONGEST_OFF, 2 * self._off)
        else:
            self._off = _SHORTEST_OFF

    def expect(self, due: int, now: int) -> int:
        """When to look, by when it is worth that: whoever serves a gate does so in time, and others stand by."""
        off = self.off_for
        if off > 0:
            return now + int(off * 1e6)
        if due >= FAR:
            return due
        wait = 0.0 if self._serves else _BEHIND * (0.5 + self._system.random())
        wait = max(wait, self._patient_until - self._system.monotonic())
        return max(due, now) + int(wait * 1e6)
