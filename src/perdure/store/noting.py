"""What a transaction gathers on its way: lines of the audit trail, and what it changes for somebody who waits.

The lines are written with it, each database by its own means; what was stirred is passed on once it is durable.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from perdure.store.clock import ServerClock
from perdure.store.protocol import Change

#: Run, time, kind, actor and data.
Line = tuple[str, int, str, str, str]


class Noting(ABC):
    """The half of a `Transaction` that needs no database."""

    def __init__(self, actor: str) -> None:
        self.actor = actor
        self._stirred = 0
        self._lines: list[Line] = []

    @property
    @abstractmethod
    def now(self) -> int:
        """The database's time when the transaction got its locks."""

    def note(self, run_id: str, kind: str, data: str = "{}") -> None:
        """Add a line to the audit trail."""
        self._lines.append((run_id, self.now, kind, self.actor, data))

    def stir(self, change: Change) -> None:
        """Say what this changes for somebody who waits."""
        # Plain integers: combining flags is a slow thing to do once a run.
        self._stirred |= int(change)

    @property
    def stirred(self) -> Change:
        """Everything that was said so."""
        return Change(self._stirred)

    def _take_lines(self) -> list[Line]:
        """The noted lines; whoever takes them writes them."""
        lines, self._lines = self._lines, []
        return lines


class NotingOnServer(Noting):
    """One whose time is the server's, which has a clock of its own."""

    def __init__(self, clock: ServerClock, actor: str) -> None:
        super().__init__(actor)
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
