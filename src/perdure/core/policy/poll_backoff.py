"""Pauses between the polls of a worker: shorter while there is work, longer while there is none."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import TypedDict

from msgspec import Struct

from perdure.core.option_checks import check_duration, no_option
from perdure.core.printed_text import brief
from perdure.core.time.duration import Duration
from perdure.errors import BadArguments, UsageError


class PollBackoffOptions(TypedDict, total=False):
    """The option `poll_backoff` of a worker, as users give it."""

    #: Pause after the first poll.
    first: Duration
    #: Shortest pause.
    shortest: Duration
    #: Longest pause of a worker that holds no run and is notified of new work.
    longest: Duration
    #: Factor after a poll that found nothing.
    idle: float
    #: Factor after a poll that found work; 0: the shortest pause follows.
    busy: float


class PollBackoff(Struct, frozen=True, kw_only=True):
    """Change of the pause between two polls; durations in seconds."""

    first: float = 0.005
    shortest: float = 0.005
    longest: float = 30.0
    idle: float = 1.5
    busy: float = 0.0

    def after_nothing(self, pause: float, longest: float) -> float:
        """Return the pause that follows a poll that found nothing; at most `longest`."""
        return min(longest, pause * self.idle)

    def after_work(self, pause: float) -> float:
        """Return the pause that follows a poll that found work."""
        return max(self.shortest, pause * self.busy)


def check_poll_backoff(given: object) -> PollBackoff:
    """Check the option of a worker. Raises `UsageError`."""
    if not isinstance(given, Mapping):
        raise UsageError(f"poll_backoff={brief(given)}: give a dict such as {{'longest': '10s'}}")
    known = PollBackoffOptions.__annotations__
    if unknown := {str(name) for name in given} - known.keys():
        raise BadArguments(no_option("poll_backoff", unknown, known))
    values = {
        name: _factor(name, value) if name in ("idle", "busy") else check_duration(f"poll_backoff: {name}", value)
        for name, value in given.items()
    }
    if "shortest" in values and "first" not in values:
        values["first"] = max(values["shortest"], PollBackoff().first)
    checked = PollBackoff(**values)
    if not 0 < checked.shortest <= checked.first <= checked.longest:
        raise UsageError(
            f"poll_backoff={brief(given)}: first must not be less than shortest, which must be more than 0, nor more "
            "than longest"
        )
    if checked.idle < 1 or not 0 <= checked.busy <= 1:
        raise UsageError(f"poll_backoff={brief(given)}: idle must be at least 1, and busy between 0 and 1")
    return checked


def _factor(name: str, value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value):
        return float(value)
    raise UsageError(f"poll_backoff: {name}={brief(value)}: give a number")
