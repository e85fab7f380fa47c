"""Circuit breakers: what is called too often in vain is left alone for a while, by everybody who shares a database.

`Breaker` is what users write at an activity or a step. What it has come to is a `BreakerState`, kept with its gate and changed under the gate's lock.
Failures are counted in ten buckets of time that make up the window, so that it slides by a tenth of itself: a failure counts for at least nine
tenths of the window and at most for all of it. Everything here is pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import StrEnum

import msgspec
from msgspec import Struct

from perdure.core.codec.decoders import decoder_for
from perdure.core.ids import check_name
from perdure.core.policy.retry import Retry
from perdure.core.time.duration import FAR, Duration, microseconds
from perdure.errors import RetryAfter, StepTimeout, UsageError

#: How many buckets of time make up a window.
BUCKETS = 10
#: What the names of their gates begin with.
PREFIX = "breaker:"
#: Of how many workers it is known what they reported last; a report is repeated soon or never.
_HEARD = 64


class Circuit(StrEnum):
    """What a breaker lets pass."""

    #: Everything.
    CLOSED = "closed"
    #: Nothing.
    OPEN = "open"
    #: A few, to see whether they succeed.
    HALF_OPEN = "half_open"


class BreakerRule(Struct, frozen=True):
    """When a breaker opens and closes; times are in microseconds."""

    failures: int = 5
    window: int = 60_000_000
    successes: int = 2
    reset: int = 30_000_000
    probes: int = 1
    #: What may not pass fails at once, in place of waiting.
    fails: bool = False


class Breaker:
    """Leaves a dependency alone that fails: after `failures` within `window`, nothing is called for `reset`.

    Then at most `probes` at a time are let pass, in all processes together, until `successes` of them have succeeded; one that fails opens it
    again. Whoever names the same `name` shares it. What may not pass waits, which uses up no attempt; with `when_open="fail"` it fails at once with
    `BreakerOpen`. `counts` says which errors are the dependency's: exception classes, or a function of the error; by
    default all that are worth another attempt, and timeouts.
    """

    def __init__(
        self,
        name: str,
        *,
        failures: int = 5,
        window: Duration = "1m",
        successes: int = 2,
        reset: Duration = "30s",
        probes: int = 1,
        when_open: str = "wait",
        counts: type[BaseException] | tuple[type[BaseException], ...] | Callable[[BaseException], bool] | None = None,
    ) -> None:
        for what, value in (("failures", failures), ("successes", successes), ("probes", probes)):
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < 2**31:
                raise UsageError(f"{what}={value!r}: give a whole number, at least 1")
        if when_open not in ("wait", "fail"):
            raise UsageError(f"when_open={when_open!r}: it is 'wait' or 'fail'")
        self.name = check_name(name, "breaker")
        self.rule = BreakerRule(
            failures, _span("window", window), successes, _span("reset", reset), probes, when_open == "fail"
        )
        self._counts = _check_counts(counts)

    def __repr__(self) -> str:
        return f"<breaker {self.name}>"

    @classmethod
    def of(cls, name: str, rule: BreakerRule) -> Breaker:
        """One that was stored."""
        breaker = cls(name)
        breaker.rule = rule
        return breaker

    @property
    def gate(self) -> str:
        """The gate that it is."""
        return PREFIX + self.name

    @property
    def counts_by_code(self) -> bool:
        """Whether `counts` was given, which cannot be stored."""
        return self._counts is not None

    def assess(self, error: BaseException | None, policy: Retry) -> bool | None:
        """Whether an attempt speaks for the dependency (True), against it (False) or says nothing (None).

        What does not count as a failure was answered, and so counts as a success.
        """
        if error is None:
            return True
        if isinstance(error, RetryAfter):
            return None
        if self._counts is None:
            return not (isinstance(error, StepTimeout) or _is_transient(error, policy))
        try:
            blamed = isinstance(error, self._counts) if isinstance(self._counts, tuple) else self._counts(error)
        except Exception as problem:
            # A mistake in the function must not hide the error that it was asked about.
            error.add_note(f"It counts as a failure: the breaker's `counts` function raised {problem!r}.")
            return False
        return not blamed


class BreakerReport(Struct, frozen=True):
    """How attempts behind one breaker ended, as one worker saw it."""

    gate: str
    rule: BreakerRule
    #: From 1, of each worker: one that is repeated is counted once.
    number: int
    #: Since when the attempts had been let pass, and how many of those failed and succeeded.
    outcomes: tuple[tuple[int, int, int], ...]


class BreakerState(Struct):
    """Where a breaker stands."""

    circuit: Circuit = Circuit.CLOSED
    #: Since when.
    since: int = 0
    #: Somebody said so, and until somebody says otherwise it stays.
    by_hand: bool = False
    #: While it is half open.
    successes: int = 0
    #: Number of the bucket, failures and successes; those of the window, the oldest first.
    ring: list[tuple[int, int, int]] = []
    #: What each worker reported last, and when.
    heard: dict[str, tuple[int, int]] = {}
    rule: BreakerRule = BreakerRule()

    def to_json(self) -> str:
        """As a gate keeps it."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: str) -> BreakerState:
        """Read it back."""
        return _state.decode(text)

    @property
    def until(self) -> int:
        """When an open one lets something pass again."""
        return FAR - 1 if self.by_hand else self.since + self.rule.reset

    def lacks(self, held: int) -> str:
        """What the next one would have to wait for, if so many have passed and count."""
        if self.circuit is Circuit.OPEN:
            return "open"
        return "room" if self.circuit is Circuit.HALF_OPEN and held >= self.rule.probes else ""

    def counted(self, now: int) -> tuple[int, int]:
        """Failures and successes within the window."""
        oldest = self._bucket(now) - BUCKETS
        recent = [(failures, successes) for number, failures, successes in self.ring if number > oldest]
        return sum(one for one, _ in recent), sum(one for _, one in recent)

    def wake(self, now: int) -> bool:
        """Half open it if that is due; whether it was."""
        if self.circuit is not Circuit.OPEN or self.until > now:
            return False
        self.turn(Circuit.HALF_OPEN, now)
        return True

    def turn(self, circuit: Circuit, now: int, *, by_hand: bool = False) -> None:
        """Change to another state, in which nothing has been counted yet."""
        self.circuit, self.since, self.by_hand, self.successes, self.ring = circuit, now, by_hand, 0, []

    def declare(self, rule: BreakerRule) -> bool:
        """What the code says now; whether that is new."""
        if rule == self.rule:
            return False
        if rule.window != self.rule.window:
            self.ring = []
        self.rule = rule
        return True

    def add_report(self, worker: str, report: BreakerReport, now: int) -> bool:
        """Count what a worker reports; False if it was counted before."""
        if self.heard.get(worker, (0, 0))[0] >= report.number:
            return False
        recent = sorted(self.heard.items(), key=lambda item: item[1][1])[-(_HEARD - 1) :]
        self.heard = {**dict(recent), worker: (report.number, now)}
        self.declare(report.rule)
        for since, failures, successes in report.outcomes:
            # What was let pass before the state changed says nothing about it.
            if since >= self.since:
                self._count(failures, successes, now)
        return True

    def _count(self, failures: int, successes: int, now: int) -> None:
        if self.circuit is Circuit.CLOSED:
            self._enter(failures, successes, now)
            if not self.by_hand and failures and self.counted(now)[0] >= self.rule.failures:
                self.turn(Circuit.OPEN, now)
        elif self.circuit is Circuit.HALF_OPEN:
            self.successes += successes
            if failures:
                self.turn(Circuit.OPEN, now)
            elif self.successes >= self.rule.successes:
                self.turn(Circuit.CLOSED, now)

    def _enter(self, failures: int, successes: int, now: int) -> None:
        bucket = self._bucket(now)
        kept = [one for one in self.ring if one[0] > bucket - BUCKETS]
        if kept and kept[-1][0] == bucket:
            _, failed, succeeded = kept.pop()
            failures, successes = failures + failed, successes + succeeded
        self.ring = [*kept, (bucket, failures, successes)]

    def _bucket(self, now: int) -> int:
        return now // max(1, self.rule.window // BUCKETS)


_state = decoder_for(BreakerState)


class BreakerInfo(Struct, frozen=True, kw_only=True):
    """A breaker as the database has it, for people."""

    name: str
    circuit: Circuit
    since: int
    by_hand: bool = False
    #: When an open one lets something pass again by itself; 0 if it does not, or is not open.
    until: int = 0
    #: Counted within the window; of one that is half open, the successes of its probes.
    failures: int = 0
    successes: int = 0
    #: How many wait for it.
    waiting: int = 0
    rule: BreakerRule = BreakerRule()
    #: Why it is set aside and lets nothing pass: its row cannot be read. Empty: it is not.
    problem: str = ""


def breaker_info(name: str, state: BreakerState, now: int, waiting: int) -> BreakerInfo:
    """What there is to say of a breaker."""
    # Nobody has looked yet, but the next one may pass.
    circuit = Circuit.HALF_OPEN if state.circuit is Circuit.OPEN and state.until <= now else state.circuit
    failures, successes = state.counted(now)
    is_open = circuit is Circuit.OPEN
    return BreakerInfo(
        name=name.removeprefix(PREFIX),
        circuit=circuit,
        since=state.since,
        by_hand=state.by_hand,
        until=state.until if is_open and not state.by_hand else 0,
        failures=failures,
        successes=state.successes if circuit is Circuit.HALF_OPEN else successes,
        waiting=waiting,
        rule=state.rule,
    )


def check_breaker(breaker: Breaker | None) -> Breaker | None:
    """Give back what a user writes. Raises `UsageError`."""
    if breaker is not None and not isinstance(breaker, Breaker):
        raise UsageError(f"breaker={breaker!r}: give a Breaker, such as Breaker('openai')")
    return breaker


def _span(name: str, value: Duration) -> int:
    span = microseconds(value)
    if span < BUCKETS:
        raise UsageError(f"{name}={value!r}: give a time, such as '30s'")
    return span


def _check_counts(
    counts: type[BaseException] | tuple[type[BaseException], ...] | Callable[[BaseException], bool] | None,
) -> tuple[type[BaseException], ...] | Callable[[BaseException], bool] | None:
    if counts is None:
        return None
    if isinstance(counts, type) and issubclass(counts, BaseException):
        return (counts,)
    if isinstance(counts, tuple) and all(isinstance(one, type) and issubclass(one, BaseException) for one in counts):
        return counts
    if isinstance(counts, tuple | type) or not callable(counts):
        raise UsageError(f"counts={counts!r}: give exception classes, or a function of the error")
    return counts


def _is_transient(error: BaseException, policy: Retry) -> bool:
    return not isinstance(error, UsageError) and policy.is_worth_retrying(error)


def count_outcomes(outcomes: Iterable[tuple[int, bool]]) -> tuple[tuple[int, int, int], ...]:
    """Outcomes as a report has them: by the time since which, how many failed and succeeded."""
    counted: dict[int, tuple[int, int]] = {}
    for since, succeeded in outcomes:
        failures, successes = counted.get(since, (0, 0))
        counted[since] = (failures, successes + 1) if succeeded else (failures + 1, successes)
    return tuple((since, *counts) for since, counts in sorted(counted.items()))
