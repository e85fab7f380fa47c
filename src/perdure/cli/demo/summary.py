"""Result of the demo, counted from the traces of the steps and from the history at the moment of the kill."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from msgspec import Struct


class StepTrace(Struct, frozen=True):
    """A line of `activity.jsonl`: an attempt at a step begins, fails or is done."""

    step: str
    attempt: int
    pid: int
    what: str


class KilledWorker(Struct, frozen=True):
    """Process id of worker A and the signal that ended it."""

    pid: int
    signal: str


class StepSummary(Struct, frozen=True, kw_only=True):
    """Attempts and effects of one step."""

    name: str
    attempts_by_a: int
    attempts_by_b: int
    #: Lines in `effects.log`.
    effects: int
    finished_before_kill: bool
    in_flight_at_kill: bool

    @property
    def repeated(self) -> bool:
        """True if the step ran again although it had finished."""
        if self.finished_before_kill:
            return self.effects != 1 or self.attempts_by_b > 0
        return self.effects != 1 and not self.in_flight_at_kill

    @property
    def note(self) -> str:
        """Explanation of the figures."""
        if self.finished_before_kill:
            return "finished before the kill: not run again"
        if self.in_flight_at_kill:
            return "in flight at the kill: run again"
        return "attempts by A still count" if self.attempts_by_a else ""


class Summary(Struct, frozen=True, kw_only=True):
    """Result of the demo."""

    ok: bool
    run: str
    status: str
    result: str
    killed: KilledWorker
    took_over: int
    in_flight: list[str]
    steps: list[StepSummary]


def count_steps(
    activity: Sequence[StepTrace],
    effects: Sequence[str],
    killed: int,
    finished: Sequence[str],
    in_flight: Sequence[str],
) -> list[StepSummary]:
    """Summarize the steps in the order of their first attempts. `effects` names a step once for each effect."""
    begun = [one for one in activity if one.what == "begins"]
    by_a = Counter(one.step for one in begun if one.pid == killed)
    by_b = Counter(one.step for one in begun if one.pid != killed)
    had = Counter(effects)
    return [
        StepSummary(
            name=name,
            attempts_by_a=by_a[name],
            attempts_by_b=by_b[name],
            effects=had[name],
            finished_before_kill=name in finished,
            in_flight_at_kill=name in in_flight,
        )
        for name in dict.fromkeys(one.step for one in begun)
    ]
