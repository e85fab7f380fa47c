"""State changes of a breaker by reports, without a database."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from perdure.core.limits.breaker import BUCKETS, BreakerReport, BreakerRule, BreakerState, Circuit, count_outcomes

SECOND = 1_000_000
RULE = BreakerRule(failures=3, window=10 * SECOND, successes=2, reset=5 * SECOND, probes=1)


def told(state: BreakerState, now: int, *outcomes: tuple[int, bool], rule: BreakerRule = RULE) -> Circuit:
    number = state.heard.get("w", (0, 0))[0] + 1
    assert state.add_report("w", BreakerReport("breaker:api", rule, number, count_outcomes(outcomes)), now)
    return state.circuit


def test_enough_failures_within_the_window_open_it() -> None:
    state = BreakerState()
    assert told(state, 1 * SECOND, (SECOND, False)) is Circuit.CLOSED
    assert told(state, 2 * SECOND, (SECOND, False), (SECOND, True)) is Circuit.CLOSED
    assert state.counted(2 * SECOND) == (2, 1)
    assert told(state, 9 * SECOND, (SECOND, False)) is Circuit.OPEN
    assert state.until == 14 * SECOND


def test_failures_that_lie_outside_the_window_do_not_count() -> None:
    state = BreakerState()
    told(state, 1 * SECOND, (SECOND, False), (SECOND, False))
    assert told(state, 11 * SECOND, (SECOND, False)) is Circuit.CLOSED
    assert state.counted(11 * SECOND) == (1, 0)


def test_a_call_of_an_earlier_state_says_nothing_about_this_one() -> None:
    state = BreakerState()
    told(state, 1 * SECOND, *[(SECOND, False)] * 3)
    assert told(state, 2 * SECOND, (SECOND // 2, True)) is Circuit.OPEN
    assert state.wake(6 * SECOND)
    assert told(state, 7 * SECOND, (SECOND, False), (SECOND, True), (SECOND, True)) is Circuit.HALF_OPEN
    assert told(state, 8 * SECOND, (6 * SECOND, True)) is Circuit.HALF_OPEN
    assert told(state, 9 * SECOND, (8 * SECOND, True)) is Circuit.CLOSED


def test_a_report_that_is_repeated_counts_once() -> None:
    state = BreakerState()
    report = BreakerReport("breaker:api", RULE, 1, ((SECOND, 2, 0),))
    assert state.add_report("w", report, SECOND)
    assert not state.add_report("w", report, SECOND)
    assert state.counted(SECOND) == (2, 0)
    assert state.add_report("another", report, SECOND)
    assert state.circuit is Circuit.OPEN


def test_what_is_remembered_of_workers_stays_small() -> None:
    state = BreakerState()
    for number in range(500):
        state.add_report(f"w{number}", BreakerReport("breaker:api", RULE, 1, ((SECOND, 0, 1),)), SECOND + number)
    assert len(state.heard) == 64
    assert "w499" in state.heard


def test_one_that_was_closed_by_hand_stays_so() -> None:
    state = BreakerState()
    state.turn(Circuit.CLOSED, SECOND, by_hand=True)
    assert told(state, 2 * SECOND, *[(SECOND, False)] * 9) is Circuit.CLOSED
    state.turn(Circuit.OPEN, SECOND, by_hand=True)
    assert not state.wake(10**15)


@given(st.lists(st.tuples(st.integers(0, 3 * SECOND), st.booleans()), max_size=60))
def test_the_window_is_between_nine_tenths_of_itself_and_all_of_it(calls: list[tuple[int, bool]]) -> None:
    state, now, times = BreakerState(), 100 * SECOND, []
    rule = BreakerRule(failures=10**6, window=10 * SECOND)
    for wait, succeeded in calls:
        now += wait
        told(state, now, (now, succeeded), rule=rule)
        times += [] if succeeded else [now]
        failures, _ = state.counted(now)
        assert sum(1 for at in times if at > now - rule.window * 9 // BUCKETS) <= failures
        assert failures <= sum(1 for at in times if at > now - rule.window)
    assert BreakerState.from_json(state.to_json()) == state
