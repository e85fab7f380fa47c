"""What a worker has to report of attempts behind breakers.

Successes of a breaker that is closed change nothing and wait for something else to be told; so a dependency that works costs nothing. A report
keeps its number until it is answered, so that one that is repeated is counted once.
"""

from __future__ import annotations

import datetime

from perdure.core.limits.breaker import Breaker, Report, aggregate
from perdure.core.model.run import FAR
from perdure.errors import BreakerOpen

#: So many outcomes are kept for later at the most.
_ENOUGH = 1000


class Judging:
    """See the module."""

    def __init__(self) -> None:
        self._outcomes: dict[str, list[tuple[int, bool]]] = {}
        self._breakers: dict[str, Breaker] = {}
        self._unanswered: tuple[Report, ...] = ()
        self._number = 0
        self._urgent = False

    @property
    def urgent(self) -> bool:
        """Whether others wait to be told."""
        return self._urgent or bool(self._unanswered)

    def add(self, breaker: Breaker, since: int, succeeded: bool, probe: bool) -> bool:
        """An attempt has ended that was let pass at a time; whether that is to be told at once."""
        outcomes = self._outcomes.setdefault(breaker.gate, [])
        self._breakers[breaker.gate] = breaker
        outcomes.append((since, succeeded))
        self._urgent |= not succeeded or probe or len(outcomes) >= _ENOUGH
        return self._urgent

    def report(self) -> tuple[Report, ...]:
        """What to tell: what has not been answered, or all that has come since."""
        if not self._unanswered and self._urgent:
            self._number += 1
            self._unanswered = tuple(
                Report(gate, self._breakers[gate].rule, self._number, aggregate(outcomes))
                for gate, outcomes in self._outcomes.items()
            )
            self._outcomes.clear()
            self._urgent = False
        return self._unanswered

    def told(self, reports: tuple[Report, ...]) -> None:
        """These were counted."""
        if reports is self._unanswered:
            self._unanswered = ()


def kept_out(breaker: Breaker, until: int, what: str) -> BreakerOpen:
    """The error of something that was not called."""
    by_itself = until < FAR - 1
    moment = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(
        microseconds=until if by_itself else 0
    )
    when = f"until {moment.isoformat()}" if by_itself else "until somebody closes it"
    return BreakerOpen(
        f"{what} was not called: the breaker {breaker.name!r} is open {when}",
        name=breaker.name,
        until=until if by_itself else 0,
    )
