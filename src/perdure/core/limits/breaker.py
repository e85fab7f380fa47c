"""Circuit breakers, shared by all processes that use a database.

Users declare a `Breaker` at an activity or step. Its `BreakerState` is stored with its gate and changed under the
gate's lock. Failures are counted in ten buckets that make up the window, so that the window slides by a tenth: a
failure counts for nine tenths of the window at least, and for all of it at most. Everything here is pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import StrEnum

from msgspec import Struct

from perdure.core.codec.decoders import decoder_for
from perdure.core.codec.plain_json import plain_json
from perdure.core.ids import check_name
from perdure.core.policy.retry import Retry
from perdure.core.printed_text import brief
from perdure.core.time.duration import NEVER, Duration, microseconds
from perdure.errors import RetryAfter, StepTimeout, UsageError

#: Number of buckets in a window.
BUCKETS = 10
#: Prefix of the gate names of breakers.
PREFIX = "breaker:"
#: Number of workers whose last report number is kept; a report is repeated soon or never.
_HEARD = 64


class Circuit(StrEnum):
    """State of a circuit breaker."""

    #: All calls pass.
    CLOSED = "closed"
    #: No call passes.
    OPEN = "open"
    #: A few probes pass.
    HALF_OPEN = "half_open"


class BreakerRule(Struct, frozen=True):
    """Thresholds and times of a breaker; times are in microseconds."""

    failures: int = 5
    window: int = 60_000_000
    successes: int = 2
    reset: int = 30_000_000
    probes: int = 1
    #: Calls fail at once while the breaker is open, instead of waiting.
    fails: bool = False


class Breaker:
    """A circuit breaker: after `failures` within `window`, a failing dependency is not called for `reset`.

    Then at most `probes` calls at a time pass, over all processes, until `successes` of them have succeeded; a failed
    probe opens the breaker again. Breakers with the same `name` are one. A call that may not pass waits without using
    up an attempt; with `when_open="fail"` it fails at once with `BreakerOpen`. `counts` selects the errors that count
    as failures of the dependency: exception classes, or a function of the error; by default timeouts and all errors
    that are worth a retry.
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
                raise UsageError(f"{what}={brief(value)}: give a whole number, at least 1")
        if when_open not in ("wait", "fail"):
            raise UsageError(f"when_open={brief(when_open)}: it is 'wait' or 'fail'")
        self.name = check_name(name, "breaker")
        self.rule = BreakerRule(
            failures, _span("window", window), successes, _span("reset", reset), probes, when_open == "fail"
        )
        self._counts = _check_counts(counts)

    def __repr__(self) -> str:
        return f"<breaker {self.name}>"

    @classmethod
    def of(cls, name: str, rule: BreakerRule) -> Breaker:
        """A breaker from its stored rule."""
        breaker = cls(name)
        breaker.rule = rule
        return breaker

    @property
    def gate(self) -> str:
        """Name of its gate."""
        return PREFIX + self.name

    @property
    def counts_by_code(self) -> bool:
        """True if `counts` was given, which is code and cannot be stored."""
        return self._counts is not None

    def assess(self, error: BaseException | None, policy: Retry) -> bool | None:
        """Tell whether an attempt counts as a success (True), as a failure (False) or not at all (None).

        An error that is not the dependency's failure is an answer of the dependency, and so counts as a success.
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
            # An error in the user's function must not hide the original error.
            error.add_note(f"It counts as a failure: the breaker's `counts` function raised {brief(problem)}.")
            return False
        return not blamed


class BreakerReport(Struct, frozen=True):
    """Outcomes of attempts behind one breaker, reported by one worker."""

    gate: str
    rule: BreakerRule
    #: Number of the report, from 1 for each worker, so that a repeated report counts once.
    number: int
    #: Time of admission, failures and successes of the attempts admitted then.
    outcomes: tuple[tuple[int, int, int], ...]


class BreakerState(Struct):
    """Stored state of a breaker; the field names are part of the stored format."""

    circuit: Circuit = Circuit.CLOSED
    #: Time of the last change.
    since: int = 0
    #: Set by hand; stays until it is changed by hand.
    by_hand: bool = False
    #: Successful probes while it is half open.
    successes: int = 0
    #: Buckets of the window, oldest first: number, failures, successes.
    ring: list[tuple[int, int, int]] = []
    #: Number and time of each worker's last report.
    heard: dict[str, tuple[int, int]] = {}
    rule: BreakerRule = BreakerRule()

    def to_json(self) -> str:
        """Encode for the gate's row."""
        return plain_json(self)

    @classmethod
    def from_json(cls, text: str) -> BreakerState:
        """Decode from the gate's row."""
        return _state_decoder.decode(text)

    @property
    def until(self) -> int:
        """Time when an open breaker admits the first probe."""
        return NEVER - 1 if self.by_hand else self.since + self.rule.reset

    def lacks(self, held: int) -> str:
        """The obstacle of the next call if `held` calls have passed: "open", "room", or nothing."""
        if self.circuit is Circuit.OPEN:
            return "open"
        return "room" if self.circuit is Circuit.HALF_OPEN and held >= self.rule.probes else ""

    def counted(self, now: int) -> tuple[int, int]:
        """Number of failures and successes within the window."""
        oldest = self._bucket(now) - BUCKETS
        recent = [(failures, successes) for number, failures, successes in self.ring if number > oldest]
        return sum(one for one, _ in recent), sum(one for _, one in recent)

    def wake(self, now: int) -> bool:
        """Change to half open if that is due; returns True if it was."""
        if self.circuit is not Circuit.OPEN or self.until > now:
            return False
        self.turn(Circuit.HALF_OPEN, now)
        return True

    def turn(self, circuit: Circuit, now: int, *, by_hand: bool = False) -> None:
        """Change the state and reset the counts."""
        self.circuit, self.since, self.by_hand, self.successes, self.ring = circuit, now, by_hand, 0, []

    def declare(self, rule: BreakerRule) -> bool:
        """Take over the rule that the code declares; returns True if it has changed."""
        if rule == self.rule:
            return False
        if rule.window != self.rule.window:
            self.ring = []
        self.rule = rule
        return True

    def add_report(self, worker: str, report: BreakerReport, now: int) -> bool:
        """Count the report of a worker; returns False if it was counted before."""
        if self.heard.get(worker, (0, 0))[0] >= report.number:
            return False
        recent = sorted(self.heard.items(), key=lambda item: item[1][1])[-(_HEARD - 1) :]
        self.heard = {**dict(recent), worker: (report.number, now)}
        self.declare(report.rule)
        for since, failures, successes in report.outcomes:
            self.count(since, failures, successes, now)
        return True

    def count(self, since: int, failures: int, successes: int, now: int) -> bool:
        """Count the ends of attempts that were admitted at a time; returns False if that was before the last change."""
        if since < self.since:
            return False
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


_state_decoder = decoder_for(BreakerState)


class BreakerInfo(Struct, frozen=True, kw_only=True):
    """State of a breaker, for inspection."""

    name: str
    circuit: Circuit
    since: int
    by_hand: bool = False
    #: Time when an open breaker admits the first probe; 0 if it is not open, or was opened by hand.
    until: int = 0
    #: Counts within the window; while it is half open, the successes of its probes.
    failures: int = 0
    successes: int = 0
    #: Number of runs and steps that wait for it.
    waiting: int = 0
    rule: BreakerRule = BreakerRule()
    #: Reason why its row cannot be read, so that nothing passes; empty if it can.
    problem: str = ""


def breaker_info(name: str, state: BreakerState, now: int, waiting: int) -> BreakerInfo:
    """Describe a breaker for inspection."""
    # The stored state changes when the next call arrives; that call may pass.
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
    """Check a `Breaker`, or None. Raises `UsageError`."""
    if breaker is not None and not isinstance(breaker, Breaker):
        raise UsageError(f"breaker={brief(breaker)}: give a Breaker, such as Breaker('openai')")
    return breaker


def _span(name: str, value: Duration) -> int:
    span = microseconds(value)
    if span < BUCKETS:
        raise UsageError(f"{name}={brief(value)}: give a time, such as '30s'")
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
        raise UsageError(f"counts={brief(counts)}: give exception classes, or a function of the error")
    return counts


def _is_transient(error: BaseException, policy: Retry) -> bool:
    return not isinstance(error, UsageError) and policy.is_worth_retrying(error)


def count_outcomes(outcomes: Iterable[tuple[int, bool]]) -> tuple[tuple[int, int, int], ...]:
    """Count outcomes by time of admission: failures and successes."""
    counted: dict[int, tuple[int, int]] = {}
    for since, succeeded in outcomes:
        failures, successes = counted.get(since, (0, 0))
        counted[since] = (failures, successes + 1) if succeeded else (failures + 1, successes)
    return tuple((since, *counts) for since, counts in sorted(counted.items()))
