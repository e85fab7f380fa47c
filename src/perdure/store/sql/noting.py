"""What a transaction gathers on its way: lines of the audit trail, and what it changes for somebody who waits.

The lines that the level asks for are written with it, each database by its own means; what was stirred, and all lines if somebody
listens, are passed on once it is durable.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable

from perdure.core.audit import NEXT, REPEATED, Audit
from perdure.core.model.run import Run
from perdure.store.contract import Change, Line
from perdure.store.server.clock import ServerClock
from perdure.store.sql.audit import of_claim

_FULL, _OFF = Audit.FULL, Audit.OFF
#: What is not written at the highest level, and at the others.
_SPOKEN = frozenset({NEXT})
_UNWRITTEN = REPEATED | _SPOKEN


class Noting(ABC):
    """The half of a `Transaction` that needs no database."""

    def __init__(self, actor: str, audit: Audit, *, listened: bool) -> None:
        self.actor = actor
        self.audit = audit
        #: Whether anything is noted at all.
        self.notes = audit is not _OFF or listened
        #: Whether what only repeats is noted, too. To be asked before such a line is made: there may be many.
        self.repeats = audit is _FULL
        #: Lines for those who listen, also if they are not written; None: nobody does.
        self.heard: list[Line] | None = [] if listened else None
        self._writes = audit is not _OFF
        self._unwritten = _SPOKEN if self.repeats else _UNWRITTEN
        self._stirred = 0
        self._lines: list[Line] = []

    @property
    @abstractmethod
    def now(self) -> int:
        """The database's time when the transaction got its locks."""

    @property
    def listened(self) -> bool:
        """Whether somebody listens to what is noted, when it is durable."""
        return self.heard is not None

    def note(self, run_id: str, kind: str, data: str = "{}") -> None:
        """Add a line to the audit trail, if it is of the level that is written."""
        # Looked up once a transaction, and not asked of the level for every line.
        if self._writes and kind not in self._unwritten:
            self._lines.append((run_id, self.now, kind, self.actor, data))
        if self.heard is not None:
            self.heard.append((run_id, self.now, kind, self.actor, data))

    def hear(self, run_id: str, kind: str, data: str = "{}") -> None:
        """A line that a statement writes by itself, for those who listen."""
        if self.heard is not None:
            self.heard.append((run_id, self.now, kind, self.actor, data))

    def note_claims(self, runs: Iterable[Run], now: int, going_on: Collection[str] = ()) -> None:
        """Add lines about runs that were claimed at that time: whether an attempt has started with it, or only goes on.

        The time of an attempt's start says that. `going_on`: ids of runs of which it is known, where the clock stands.
        """
        if self.notes:
            for run in runs:
                starts = run.started_at == now and run.id not in going_on
                if self.repeats or starts:
                    self.note(run.id, *of_claim(run, starts=starts))

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

    def __init__(self, clock: ServerClock, actor: str, audit: Audit, *, listened: bool) -> None:
        super().__init__(actor, audit, listened=listened)
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
