"""Planning of fire times that are due, missed or overlapping, without a database."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from perdure import Every, Overlap
from perdure.admin import Misfire, Schedule
from perdure.core.time.cron import Cron, fire_times, next_fire_time, to_stored
from perdure.core.time.duration import NEVER, moment_of
from perdure.core.time.firing_plan import BATCH, FiringPlan, plan_firing, when_due
from perdure.core.time.schedule import LONGEST_QUEUE, fire_time_of, run_id_of
from perdure.errors import InvalidSchedule

SECOND = 1_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
START = 1_700_000_000 * SECOND


def every(interval: Any = "1h", **changes: Any) -> Schedule:
    """A schedule whose next slot is at the start."""
    spec = to_stored(Every(interval, start=moment_of(START)))
    fields: dict[str, Any] = {"id": "s", "spec": spec, "type": "t", "next_fire_time": START, "overlap": Overlap.ALLOW}
    return Schedule(**{**fields, **changes})


def hours(*numbers: int) -> tuple[int, ...]:
    return tuple(START + number * HOUR for number in numbers)


def passed(planned: FiringPlan) -> list[tuple[int, int, str]]:
    return [((one.first - START) // HOUR, (one.last - START) // HOUR, one.why) for one in planned.skipped]


def test_what_is_due_is_started_and_the_next_one_is_waited_for() -> None:
    planned = plan_firing(every(), START + SECOND, busy=False)
    assert (planned.start, passed(planned)) == (hours(0), [])
    assert planned.schedule.next_fire_time == planned.schedule.due_at == START + HOUR
    assert planned.schedule.last_fire_time == START


@pytest.mark.parametrize(
    ("policy", "started", "left"),
    [
        ("skip", (), [(0, 4, "missed")]),
        ("once", (4,), [(0, 3, "missed")]),
        (2, (3, 4), [(0, 2, "missed")]),
        ("all", (0, 1, 2, 3, 4), []),
    ],
)
def test_slots_that_no_worker_was_there_for(policy: Any, started: tuple[int, ...], left: list[Any]) -> None:
    planned = plan_firing(every(misfire=Misfire.of(policy)), START + 4 * HOUR + 30 * MINUTE, busy=False)
    assert (planned.start, passed(planned)) == (hours(*started), left)
    assert planned.schedule.next_fire_time == START + 5 * HOUR


@pytest.mark.parametrize("policy", ["skip", "once", "all", 3])
def test_a_slot_within_its_grace_is_not_missed(policy: Any) -> None:
    schedule = every(misfire=Misfire.of(policy, grace="10m"), next_fire_time=START + HOUR)
    assert plan_firing(schedule, START + HOUR + 10 * MINUTE, busy=False).start == hours(1)
    late = plan_firing(schedule, START + HOUR + 10 * MINUTE + 1, busy=False)
    assert late.start == (() if policy == "skip" else hours(1))


def test_what_is_too_old_is_not_made_up_for() -> None:
    schedule = every(misfire=Misfire.of("all", within="150m"))
    planned = plan_firing(schedule, START + 4 * HOUR + 30 * MINUTE, busy=False)
    assert (planned.start, passed(planned)) == (hours(2, 3, 4), [(0, 1, "missed")])


def test_a_long_backlog_is_worked_off_in_parts() -> None:
    schedule = every("1s", misfire=Misfire.of("all"))
    now = START + 1000 * SECOND
    started: list[int] = []
    while schedule.next_fire_time <= now:
        planned = plan_firing(schedule, now, busy=False)
        assert len(planned.start) <= BATCH
        started += planned.start
        schedule = planned.schedule
    assert started == [START + number * SECOND for number in range(1001)]


def test_years_of_missed_slots_are_not_counted_one_by_one() -> None:
    schedule = every("100ms", misfire=Misfire.of("once"))
    assert plan_firing(schedule, START + 10 * 365 * 24 * HOUR, busy=False).skipped[0].first == START
    nightly = replace(schedule, spec=to_stored(Cron("* * * * * *")), misfire=Misfire.of(3, grace=0))
    assert len(plan_firing(nightly, START + 10 * 365 * 24 * HOUR, busy=False).start) == 4


def test_while_a_run_goes_on_its_next_slot_is_skipped() -> None:
    planned = plan_firing(every(overlap=Overlap.SKIP), START, busy=True)
    assert (planned.start, passed(planned)) == ((), [(0, 0, "overlap")])
    assert plan_firing(every(overlap=Overlap.SKIP), START, busy=False).start == hours(0)
    assert plan_firing(every(overlap=Overlap.ALLOW), START, busy=True).start == hours(0)


def test_while_a_run_goes_on_the_slots_behind_it_wait_in_line() -> None:
    schedule = every(overlap=Overlap.QUEUE, misfire=Misfire.of("all"))
    waiting = plan_firing(schedule, START + 2 * HOUR, busy=True)
    assert (waiting.start, waiting.schedule.waiting) == ((), hours(0, 1, 2))
    assert waiting.schedule.due_at == START + 2 * HOUR + 10 * SECOND
    first = plan_firing(waiting.schedule, START + 2 * HOUR + SECOND, busy=False)
    assert (first.start, first.schedule.waiting) == (hours(0), hours(1, 2))
    assert plan_firing(first.schedule, START + 2 * HOUR + 2 * SECOND, busy=True).start == ()


def test_the_line_has_an_end() -> None:
    schedule = every(overlap=Overlap.QUEUE, misfire=Misfire.of("all"), waiting=hours(*range(-LONGEST_QUEUE, 0)))
    planned = plan_firing(schedule, START, busy=True)
    assert len(planned.schedule.waiting) == LONGEST_QUEUE
    assert passed(planned) == [(0, 0, "queue full")]


def test_a_run_that_goes_on_is_cancelled_for_the_last_slot_alone() -> None:
    schedule = every(overlap=Overlap.CANCEL, misfire=Misfire.of("all"))
    planned = plan_firing(schedule, START + 2 * HOUR, busy=True)
    assert (planned.start, planned.cancel_for, planned.schedule.waiting) == ((), START + 2 * HOUR, hours(2))
    assert passed(planned) == [(0, 0, "replaced"), (1, 1, "replaced")]
    assert plan_firing(planned.schedule, START + 2 * HOUR + SECOND, busy=True).cancel_for is None
    assert plan_firing(planned.schedule, START + 2 * HOUR + SECOND, busy=False).start == hours(2)
    assert plan_firing(schedule, START + 2 * HOUR, busy=False).start == hours(2)


def test_a_paused_schedule_is_never_due() -> None:
    assert when_due(every(paused=True, waiting=(1,)), START) == NEVER


def test_jitter_is_the_same_for_the_same_slot_and_spread_over_all() -> None:
    schedule = every(jitter=10 * MINUTE)
    late = [schedule.due(slot) - slot for slot in hours(*range(200))]
    assert late == [every(jitter=10 * MINUTE).due(slot) - slot for slot in hours(*range(200))]
    assert all(0 <= one <= 10 * MINUTE for one in late)
    assert min(late) < MINUTE
    assert max(late) > 9 * MINUTE
    due = schedule.due(START)
    assert plan_firing(schedule, due - 1, busy=False).start == ()
    assert plan_firing(schedule, due, busy=False).start == hours(0)


def test_a_run_knows_its_slot() -> None:
    for slot in (START, START + 1):
        assert fire_time_of(run_id_of("a@b", slot)) == moment_of(slot)
    for run_id in ("nightly", "nightly@now-1a2b", "nightly@2024-01-01", "me@example.org"):
        assert fire_time_of(run_id) is None


@pytest.mark.parametrize("policy", ["sometimes", -1, True, 10_001, 1.5])
def test_a_policy_that_is_none_is_refused(policy: Any) -> None:
    with pytest.raises(InvalidSchedule, match="misfire="):
        Misfire.of(policy)


@settings(deadline=None, max_examples=100)
@given(
    overlap=st.sampled_from(list(Overlap)),
    policy=st.sampled_from([0, 1, 3, None]),
    grace=st.integers(0, 10),
    jitter=st.integers(0, 7),
    timing=st.sampled_from([Every("3s", start=moment_of(START)), Cron("*/7 * * * * *"), Cron("* * * * *")]),
    looks=st.lists(st.tuples(st.integers(0, 200), st.booleans()), min_size=1, max_size=12),
)
def test_every_slot_is_dealt_with_once_whenever_one_looks(
    overlap: Overlap, policy: int | None, grace: int, jitter: int, timing: Any, looks: list[tuple[int, bool]]
) -> None:
    schedule = every(
        spec=to_stored(timing),
        next_fire_time=next_fire_time(timing, START),
        overlap=overlap,
        misfire=Misfire(policy, grace),
        jitter=jitter * SECOND,
    )
    now, first = START, schedule.next_fire_time
    started: list[int] = []
    left: set[int] = set()
    for passing, busy in looks:
        now += passing * SECOND
        planned = plan_firing(schedule, now, busy=busy and bool(started))
        started += planned.start
        for one in planned.skipped:
            left |= {slot for slot in slots_between(timing, one.first, one.last)}
        schedule = planned.schedule
    assert started == sorted(set(started))
    due = {slot for slot in slots_between(timing, first, schedule.next_fire_time - 1)}
    assert due == {*started, *left, *schedule.waiting}
    assert len(due) == len(started) + len(left) + len(schedule.waiting)


def slots_between(timing: Any, first: int, last: int) -> list[int]:
    found = []
    for slot in fire_times(timing, first - 1):
        if slot > last:
            break
        found.append(slot)
    return found
