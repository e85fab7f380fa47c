"""`Retry`: which failures are retried, how often, and after which delay.

The number of attempts includes the first. The delay after attempt n is `initial * factor ** (n - 1)`, or `initial * n
** power`, with `extra` added and jitter applied; clamping to `max` comes last, so no delay is longer. `Fatal` gives up
at once. An attempt that ends in `RetryAfter` does not count.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from typing import cast

from msgspec import Struct

from perdure.core.policy.classify import classify, names_of
from perdure.core.printed_text import brief
from perdure.core.time.duration import Duration, microseconds, seconds
from perdure.errors import Fatal, InvalidDuration, RetryAfter, StepTimeout, UsageError


class Retry(Struct, frozen=True):
    """A retry policy. The default is 5 attempts, 1 s apart at first, then twice as long each time, up to 60 s."""

    #: Number of attempts, including the first. None: no limit.
    attempts: int | None = 5
    initial: Duration = "1s"
    factor: float = 2.0
    max: Duration = "60s"
    #: Fraction by which a delay varies, up and down; with `jitter_only_adds` only up.
    jitter: float = 0.1
    #: Exceptions that are not retried: classes, or names such as `KeyError` or `shop.Declined`. A name also matches an
    #: error that came from another process or language, whose class is not known here.
    give_up_on: tuple[type[BaseException] | str, ...] = ()
    #: Retry attempts that exceeded the step's timeout.
    on_timeout: bool = True
    #: Function of the number of attempts and the error that returns the delay. It replaces `initial`, `factor`, `max`,
    #: `jitter`, `power` and `extra`, and switches `classify` off.
    delay: Callable[[int, BaseException], Duration] | None = None
    #: Polynomial growth, `initial * n ** power`, in place of the exponential one.
    power: float | None = None
    #: Bounds of a random time that is added to each delay.
    extra: tuple[Duration, Duration] = (0, 0)
    #: Classify errors of HTTP libraries and the like (see `classify`): errors that blame the request or the data are
    #: not retried; a `Retry-After` of the server is followed and uses up no attempt.
    classify: bool = True
    #: Jitter lengthens a delay and never shortens it.
    jitter_only_adds: bool = False

    def __post_init__(self) -> None:
        if self.attempts is not None and (not _is_whole(self.attempts) or not 1 <= self.attempts < 2**63):
            raise UsageError(
                f"Retry(attempts={brief(self.attempts)}): give a whole number from 1 (the first attempt counts), "
                "or None for no limit"
            )
        for name in ("initial", "max"):
            _check_duration(name, getattr(self, name))
        _check_number("factor", self.factor, 1, math.inf, "a number from 1")
        _check_number("jitter", self.jitter, 0, 1, "a number from 0 to 1")
        if self.power is not None:
            _check_number("power", self.power, 0, math.inf, "a number from 0, or None")
        if not isinstance(self.give_up_on, tuple) or not all(_is_error(each) for each in self.give_up_on):
            raise UsageError(
                f"Retry(give_up_on={brief(self.give_up_on)}): give a tuple of exception classes, or of their names as "
                "the history has them, such as ('shop.Declined',)"
            )
        if self.delay is not None and not callable(self.delay):
            raise UsageError(
                f"Retry(delay={brief(self.delay)}): give a function of the attempt's number and its error, or None"
            )
        for name in ("on_timeout", "classify", "jitter_only_adds"):
            if not isinstance(getattr(self, name), bool):
                raise UsageError(f"Retry({name}={brief(getattr(self, name))}): give True or False")
        _check_extra(self.extra)

    @classmethod
    def never(cls) -> Retry:
        """One attempt, no retry."""
        return cls(attempts=1)

    @classmethod
    def fixed(cls, delay: Duration, *, attempts: int | None = 5, jitter: float = 0.0) -> Retry:
        """The same delay each time."""
        _check_number("jitter", jitter, 0, 1, "a number from 0 to 1")
        longest = microseconds(delay) * (1 + jitter) / 1_000_000
        return cls(attempts=attempts, initial=delay, factor=1.0, max=longest, jitter=jitter)

    @classmethod
    def exponential(cls) -> Retry:
        """5 attempts; 1 s, 2 s, 4 s, up to 60 s; jitter 10 %. The default."""
        return cls()

    @classmethod
    def patient(cls) -> Retry:
        """10 attempts; 1 s, 2 s, 4 s, up to 100 s; no jitter."""
        return cls(attempts=10, max="100s", jitter=0.0)

    @classmethod
    def spread_out(cls) -> Retry:
        """11 attempts; 2 s, 4 s, 8 s and 1 to 3 s more each time, up to 5 minutes."""
        return cls(attempts=11, initial="2s", max="5m", jitter=0.0, extra=("1s", "3s"))

    @classmethod
    def quick(cls) -> Retry:
        """4 attempts; 100 ms, 200 ms, 400 ms; no jitter; gives up on a timeout."""
        return cls(attempts=4, initial="100ms", max="30s", jitter=0.0, on_timeout=False)

    @classmethod
    def quadratic_minutes(cls, attempts: int | None = 3) -> Retry:
        """3 attempts; 1 min, 4 min, and so on by the square of the attempt, up to a day; jitter adds up to 10 %."""
        return cls(attempts=attempts, initial="1m", power=2.0, max="1d", jitter_only_adds=True)

    def next_delay(self, attempt: int, error: BaseException, random: float) -> float | None:
        """Seconds from the failure of attempt `attempt` (from 1) to the next one; None: give up.

        `random` is in [0, 1).
        """
        if self.attempts is not None and attempt >= self.attempts:
            return None
        if not self.is_worth_retrying(error):
            return None
        if self.delay is not None:
            return self._own_delay(self.delay, attempt, error)
        longest = seconds(self.max)
        low, high = (seconds(bound) for bound in self.extra)
        result = self._growth(attempt) + low + (high - low) * random
        result *= 1 + self.jitter * (random if self.jitter_only_adds else 2 * random - 1)
        return min(result, longest)

    def is_worth_retrying(self, error: BaseException) -> bool:
        """Tell whether another attempt may succeed after an error."""
        for each in _leaves(error):
            if not isinstance(each, Exception) or isinstance(each, Fatal) or self._gives_up_on(each):
                return False
            if isinstance(each, StepTimeout) and not self.on_timeout:
                return False
            if self.classify and self.delay is None and classify(each).is_final:
                return False
        return not self._gives_up_on(error)

    def requested_delay(self, error: BaseException, now: int) -> float | None:
        """Seconds to wait that the error itself requests, without counting the attempt; None if it requests none."""
        if isinstance(error, RetryAfter):
            return _delay_of(error)
        if not self.classify or self.delay is not None or self.attempts == 1:
            return None
        return None if self._gives_up_on(error) else classify(error, now=now).retry_after

    def _gives_up_on(self, error: BaseException) -> bool:
        classes = tuple(each for each in self.give_up_on if not isinstance(each, str))
        names = {each for each in self.give_up_on if isinstance(each, str)}
        return isinstance(error, classes) or bool(names and not names.isdisjoint(names_of(error)))

    def _growth(self, attempt: int) -> float:
        initial = seconds(self.initial)
        if not initial:
            return 0.0
        try:
            return initial * (self.factor ** (attempt - 1) if self.power is None else float(attempt) ** self.power)
        except OverflowError:
            return seconds(self.max)

    def _own_delay(
        self, delay: Callable[[int, BaseException], Duration], attempt: int, error: BaseException
    ) -> float | None:
        try:
            return seconds(delay(attempt, error))
        except Exception as problem:
            # An error in the user's function must not hide the original error.
            error.add_note(f"No further attempt: the retry policy's delay function raised {brief(problem)}.")
            return None


def _delay_of(error: RetryAfter) -> float | None:
    try:
        return seconds(cast("Duration", error.delay))
    except InvalidDuration as problem:
        error.add_note(f"RetryAfter counts as an ordinary failure here: {problem}")
        return None


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for member in error.exceptions:
            yield from _leaves(member)
    else:
        yield error


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_error(value: object) -> bool:
    if isinstance(value, str):
        good = value.isprintable() and not any(each.isspace() or each in ",()'\"" for each in value)
        return good and value.strip(".") == value != ""
    return isinstance(value, type) and issubclass(value, BaseException)


def _check_number(name: str, value: object, low: float, high: float, wanted: str) -> None:
    most = min(high, sys.float_info.max)
    good = isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= most
    if not good:
        raise UsageError(f"Retry({name}={brief(value)}): give {wanted}")


def _check_duration(name: str, value: Duration) -> None:
    try:
        seconds(value)
    except InvalidDuration as problem:
        raise InvalidDuration(f"Retry({name}={brief(value)}): {problem}") from None


def _check_extra(extra: object) -> None:
    if not isinstance(extra, tuple) or len(extra) != 2:
        raise UsageError(f"Retry(extra={brief(extra)}): give two bounds, such as ('1s', '3s')")
    for bound in extra:
        _check_duration("extra", bound)
    if seconds(extra[0]) > seconds(extra[1]):
        raise UsageError(f"Retry(extra={brief(extra)}): the lower bound goes first")
