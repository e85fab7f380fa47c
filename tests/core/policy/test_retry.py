from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.codec.failure import ErrorTypes, Failure
from perdure.core.policy.retry import Retry
from perdure.errors import Fatal, InvalidDuration, RetryAfter, StepFailed, StepTimeout, UsageError

chance = st.floats(0, 1, exclude_max=True)


class Declined(LookupError):
    pass


class Shop:
    class Refused(Declined):
        pass


MIDDLE = 0.5


def delays(policy: Retry, random: float = MIDDLE) -> list[float]:
    """Every delay until the policy gives up."""
    found: list[float] = []
    while (delay := policy.next_delay(len(found) + 1, ValueError(), random)) is not None:
        found.append(delay)
    return found


def test_the_default_is_five_attempts_a_second_apart_and_doubling() -> None:
    assert delays(Retry()) == [1, 2, 4, 8]
    assert Retry() == Retry.exponential()


def test_the_sixth_delay_and_later_ones_are_the_longest() -> None:
    assert delays(Retry(attempts=9)) == [1, 2, 4, 8, 16, 32, 60, 60]


def test_the_quick_preset_is_a_tenth_of_a_second_and_doubling_without_chance() -> None:
    assert delays(Retry.quick(), 0.0) == delays(Retry.quick(), 0.99) == [0.1, 0.2, 0.4]
    assert Retry.quick().next_delay(1, StepTimeout("late"), MIDDLE) is None
    assert Retry.exponential().next_delay(1, StepTimeout("late"), MIDDLE) == 1


def test_the_quadratic_preset_is_minutes_by_the_square() -> None:
    assert delays(Retry.quadratic_minutes(), 0.0) == [60, 240]
    assert delays(Retry.quadratic_minutes(5), 0.0) == [60, 240, 540, 960]


@given(chance, st.integers(2, 37))
def test_the_quadratic_preset_only_adds_up_to_a_tenth_of_the_delay(random: float, attempts: int) -> None:
    for attempt, delay in enumerate(delays(Retry.quadratic_minutes(attempts), random), 1):
        base = attempt**2 * 60
        assert delay == pytest.approx(base + base * 0.1 * random)
        assert base <= delay <= 1.1 * base


def test_the_quadratic_preset_ends_after_about_one_and_four_minutes_with_the_third_attempt() -> None:
    assert delays(Retry.quadratic_minutes(), 0.5) == pytest.approx([63, 252])
    assert Retry.quadratic_minutes().attempts == 3


def test_jitter_that_only_adds_never_shortens_a_delay() -> None:
    policy = Retry(jitter=0.5, jitter_only_adds=True)
    assert delays(policy, 0.0) == [1, 2, 4, 8]
    assert delays(policy, 0.5) == [1.25, 2.5, 5, 10]
    assert delays(Retry(jitter=0.5, jitter_only_adds=True, max="3s"), 0.5) == [1.25, 2.5, 3, 3]


def test_the_patient_preset_makes_ten_attempts_up_to_a_hundred_seconds() -> None:
    assert delays(Retry.patient(), 0.9) == [1, 2, 4, 8, 16, 32, 64, 100, 100]


def test_the_spread_out_preset_adds_one_to_three_seconds() -> None:
    assert delays(Retry.spread_out(), 0.0)[:3] == [3, 5, 9]
    assert delays(Retry.spread_out(), 0.5)[:3] == [4, 6, 10]
    assert len(delays(Retry.spread_out())) == 10
    assert delays(Retry.spread_out())[-1] == 300


def test_never_is_one_attempt() -> None:
    assert delays(Retry.never()) == []


def test_fixed_is_the_same_each_time() -> None:
    assert delays(Retry.fixed("3s")) == [3, 3, 3, 3]
    assert delays(Retry.fixed("10m", attempts=3)) == [600, 600]
    assert delays(Retry.fixed("10s", attempts=2, jitter=0.2), 0.0) == [8]
    assert Retry.fixed("10s", jitter=0.2).next_delay(1, ValueError(), 0.999) == pytest.approx(12, rel=0.01)


def test_no_limit_means_no_limit_and_no_overflow() -> None:
    for policy in (Retry(attempts=None), Retry(attempts=None, power=300.0), Retry(attempts=None, factor=1e300)):
        assert policy.next_delay(10**9, ValueError(), MIDDLE) == 60


@given(st.integers(1, 10**6), chance, st.floats(0, 1), st.floats(1, 1e6), st.floats(0, 1e6), st.floats(0, 1e6))
def test_no_delay_is_ever_longer_than_the_longest_or_negative(
    attempt: int, random: float, jitter: float, factor: float, initial: float, longest: float
) -> None:
    policy = Retry(attempts=None, initial=initial, factor=factor, max=longest, jitter=jitter)
    delay = policy.next_delay(attempt, ValueError(), random)
    assert delay is not None
    assert 0 <= delay <= longest


@given(chance)
def test_jitter_is_a_tenth_up_or_down(random: float) -> None:
    delay = Retry().next_delay(3, ValueError(), random)
    assert delay is not None
    assert 3.6 <= delay <= 4.4


def test_fatal_gives_up_at_once() -> None:
    assert Retry().next_delay(1, Fatal("no"), MIDDLE) is None


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(), GeneratorExit()])
def test_what_is_no_ordinary_exception_is_not_retried(error: BaseException) -> None:
    assert Retry().next_delay(1, error, MIDDLE) is None


def test_giving_up_follows_the_class_and_its_subclasses() -> None:
    policy = Retry(give_up_on=(LookupError,))
    assert policy.next_delay(1, KeyError(), MIDDLE) is None
    assert policy.next_delay(1, ValueError(), MIDDLE) == 1


@pytest.mark.parametrize(
    "name", ["Declined", f"{__name__}.Declined", "Refused", f"{__name__}.Shop.Refused", "LookupError", "Exception"]
)
def test_a_name_matches_a_class_and_its_subclasses_as_the_class_does(name: str) -> None:
    error = Shop.Refused("no")
    assert Retry(give_up_on=(name,)).next_delay(1, error, MIDDLE) is None
    assert Retry(give_up_on=(KeyError, name)).next_delay(1, error, MIDDLE) is None
    assert not Retry(give_up_on=(name,)).is_worth_retrying(ExceptionGroup("", [ValueError(), error]))


@pytest.mark.parametrize("name", ["declined", "shop.Declined", "Shop.Refused", "Key", "object", "Shop", "Error"])
def test_any_other_name_matches_nothing(name: str) -> None:
    assert Retry(give_up_on=(name,)).next_delay(1, Shop.Refused("no"), MIDDLE) == 1


@pytest.mark.parametrize("name", ["Declined", "payments.cards.Declined"])
def test_a_name_matches_a_stored_error_whose_class_is_not_known_here(name: str) -> None:
    foreign = ErrorTypes().restore(Failure(type="payments.cards.Declined", message="no money"))
    assert type(foreign) is StepFailed
    policy = Retry(give_up_on=(name,))
    assert policy.next_delay(1, foreign, MIDDLE) is None
    assert not policy.is_worth_retrying(ExceptionGroup("", [ValueError(), foreign]))
    group = ErrorTypes().restore(Failure(type="ExceptionGroup", members=(Failure(type="payments.cards.Declined"),)))
    assert policy.next_delay(1, group, MIDDLE) is None
    assert policy.next_delay(1, ErrorTypes().restore(Failure(type="payments.cards.Busy")), MIDDLE) == 1
    assert policy.next_delay(1, StepFailed("without a stored error"), MIDDLE) == 1
    assert Retry(give_up_on=("StepFailed",)).next_delay(1, foreign, MIDDLE) is None


def test_a_name_keeps_a_policy_from_following_the_time_that_a_server_asks_for() -> None:
    class Busy(Exception):
        status, headers = 429, {"Retry-After": "7"}

    assert Retry().requested_delay(Busy(), 0) == 7
    assert Retry(give_up_on=("Busy",)).requested_delay(Busy(), 0) is None


def test_a_group_gives_up_when_any_of_its_members_does() -> None:
    policy = Retry(give_up_on=(LookupError,))
    assert policy.next_delay(1, ExceptionGroup("", [ValueError(), ExceptionGroup("", [KeyError()])]), MIDDLE) is None
    assert policy.next_delay(1, ExceptionGroup("", [ValueError(), Fatal()]), MIDDLE) is None
    assert policy.next_delay(1, ExceptionGroup("", [ValueError()]), MIDDLE) == 1
    assert Retry(give_up_on=(ExceptionGroup,)).next_delay(1, ExceptionGroup("", [ValueError()]), MIDDLE) is None
    assert Retry(give_up_on=("ExceptionGroup",)).next_delay(1, ExceptionGroup("", [ValueError()]), MIDDLE) is None


def test_a_function_decides_the_delay_by_attempt_and_error() -> None:
    seen: list[tuple[int, str]] = []

    def delay(attempt: int, error: BaseException) -> str:
        seen.append((attempt, str(error)))
        return f"{attempt * 10}m"

    policy = Retry(attempts=3, delay=delay)
    assert policy.next_delay(2, ValueError("x"), 0.9) == 1200
    assert policy.next_delay(3, ValueError("x"), 0.9) is None
    assert seen == [(2, "x")]


@pytest.mark.parametrize("answer", ["soon", -1, None])
def test_a_function_that_fails_ends_the_retries_and_says_so_on_the_error(answer: Any) -> None:
    error = ValueError("the real problem")
    assert Retry(delay=lambda _attempt, _error: answer).next_delay(1, error, MIDDLE) is None
    assert "delay function" in error.__notes__[0]


def test_the_delay_that_a_step_asks_for_is_read_like_any_duration() -> None:
    assert Retry().requested_delay(RetryAfter("5m"), 0) == 300
    assert Retry().requested_delay(RetryAfter(2.5), 0) == 2.5
    assert Retry().requested_delay(ValueError(), 0) is None


def test_asking_for_no_valid_delay_is_an_ordinary_failure() -> None:
    error = RetryAfter("soon")
    assert Retry().requested_delay(error, 0) is None
    assert "soon" in error.__notes__[0]
    assert Retry().next_delay(1, error, MIDDLE) == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"attempts": 0},
        {"attempts": -1},
        {"attempts": 2.5},
        {"attempts": True},
        {"attempts": "5"},
        {"factor": 0.5},
        {"factor": float("nan")},
        {"factor": float("inf")},
        {"factor": "2"},
        {"jitter": -0.1},
        {"jitter": 1.1},
        {"jitter": True},
        {"power": -1},
        {"power": "2"},
        {"jitter_only_adds": 1},
        {"give_up_on": ValueError},
        {"give_up_on": [ValueError]},
        {"give_up_on": "KeyError"},
        {"give_up_on": ["KeyError"]},
        {"give_up_on": (ValueError, "")},
        {"give_up_on": ("KeyError, ValueError",)},
        {"give_up_on": ("KeyError()",)},
        {"give_up_on": (" KeyError",)},
        {"give_up_on": (".KeyError",)},
        {"give_up_on": ("KeyError.",)},
        {"give_up_on": ("Key\0Error",)},
        {"give_up_on": (b"KeyError",)},
        {"give_up_on": (int,)},
        {"delay": "1s"},
        {"extra": "1s"},
        {"extra": ("3s", "1s")},
        {"extra": ("1s",)},
        {"initial": -1},
        {"initial": "soon"},
        {"max": None},
        {"extra": ("1s", "x")},
    ],
)
def test_a_wrong_policy_is_refused_when_it_is_written(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=rf"Retry\({next(iter(wrong))}="):
        Retry(**wrong)


def test_a_wrong_duration_in_a_policy_is_an_invalid_duration() -> None:
    with pytest.raises(InvalidDuration, match="1h30m"):
        Retry(initial="soon")


def test_a_policy_is_a_value() -> None:
    assert Retry(attempts=3) == Retry(attempts=3)
    assert hash(Retry(attempts=3)) == hash(Retry(attempts=3))
    with pytest.raises(AttributeError):
        Retry().attempts = 3  # type: ignore[misc] # wrong on purpose
