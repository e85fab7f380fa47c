"""What the demo proved, counted from the traces that the steps left and from the history at the moment of the kill."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from msgspec import Struct


class Activity(Struct, frozen=True):
    """A line of `activity.jsonl`: something that an attempt of a step did."""

    step: str
    attempt: int
    pid: int
    what: str


class Killed(Struct, frozen=True):
    """The end of worker A."""

    pid: int
    signal: str


class Step(Struct, frozen=True, kw_only=True):
    """What became of one step."""

    name: str
    attempts_by_a: int
    attempts_by_b: int
    #: Lines in `effects.log`.
    effects: int
    finished_before_kill: bool
    in_flight_at_kill: bool

    @property
    def repeated(self) -> bool:
        """Whether it ran again although it had finished."""
        if self.finished_before_kill:
            return self.effects != 1 or self.attempts_by_b > 0
        return self.effects != 1 and not self.in_flight_at_kill

    @property
    def note(self) -> str:
        """What is remarkable about it."""
        if self.finished_before_kill:
            return "finished before the kill: not run again"
        if self.in_flight_at_kill:
            return "in flight at the kill: run again"
        return "its attempts still counted" if self.attempts_by_a else ""


class Summary(Struct, frozen=True, kw_only=True):
    """The outcome of the demo."""

    ok: bool
    run: str
    status: str
    result: str
    killed: Killed
    took_over: int
    in_flight: list[str]
    steps: list[Step]


def count_steps(
    activity: Sequence[Activity], effects: Sequence[str], killed: int, finished: Sequence[str], in_flight: Sequence[str]
) -> list[Step]:
    """The steps, in the order in which they first began. `effects` are the steps that had one, an entry each time."""
    begun = [one for one in activity if one.what == "begins"]
    by_a = Counter(one.step for one in begun if one.pid == killed)
    by_b = Counter(one.step for one in begun if one.pid != killed)
    had = Counter(effects)
    return [
        Step(
            name=name,
            attempts_by_a=by_a[name],
            attempts_by_b=by_b[name],
            effects=had[name],
            finished_before_kill=name in finished,
            in_flight_at_kill=name in in_flight,
        )
        for name in dict.fromkeys(one.step for one in begun)
    ]
