"""Fire times of timings with a beginning, an end and skipped dates, compared with a filter over all fire times."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from itertools import islice, takewhile
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from perdure import At, Cron, Every
from perdure.core.time.cron import (
    Timing,
    Window,
    fire_times,
    from_stored,
    latest_fire_times,
    next_fire_time,
    to_stored,
    window_from_stored,
    zone_of,
)
from perdure.core.time.duration import NEVER, instant, moment_of
from perdure.errors import InvalidSchedule

FIRST = datetime(2026, 3, 20, tzinfo=UTC)
TIMINGS: list[Timing] = [
    Cron("30 2 * * *", "Europe/Prague"),
    Cron("*/30 * * * *", "America/Havana"),
    Cron("0 0 * * MON", "Asia/Tokyo"),
    Every("7h", start=FIRST + timedelta(minutes=5)),
    Every("31h", start=FIRST - timedelta(days=9)),
]


def days(numbers: set[int]) -> tuple[date, ...]:
    return tuple(sorted((FIRST + timedelta(days=number)).date() for number in numbers))


def in_window(window: Window, after: int, until: int) -> list[int]:
    """Slow and obviously right: all fire times, then a filter."""
    zone = zone_of(window.timing)
    return [
        time
        for time in takewhile(lambda time: time < until, fire_times(window.timing, after))
        if (window.starts is None or moment_of(time) >= window.starts)
        and (window.ends is None or moment_of(time) < window.ends)
        and moment_of(time).astimezone(zone).date() not in window.skip
    ]


@settings(max_examples=150, deadline=None)
# The time after which it begins is a fire time, and fewer times follow than are asked for.
@example(timing=Every("1h", start=FIRST), skip=set(), bounds=(None, 3), after=0)
@given(
    timing=st.sampled_from(TIMINGS),
    skip=st.sets(st.integers(0, 20), max_size=15),
    bounds=st.tuples(st.none() | st.integers(-5, 400), st.none() | st.integers(0, 500)),
    after=st.integers(-24, 300),
)
def test_a_window_has_the_fire_times_of_its_timing_that_it_does_not_leave_out(
    timing: Timing, skip: set[int], bounds: tuple[int | None, int | None], after: int
) -> None:
    starts, ends = (None if one is None else FIRST + timedelta(hours=one) for one in bounds)
    window = Window(timing, starts, ends, days(skip))
    low, until = instant(FIRST, 0) + after * 3_600_000_000, instant(FIRST + timedelta(days=25), 0)
    expected = in_window(window, low, until)
    assert list(takewhile(lambda time: time < until, fire_times(window, low))) == expected
    assert latest_fire_times(window, low + 1, until, 3) == expected[-3:]
    assert window_from_stored(to_stored(window)) == window


def test_skipped_dates_are_those_of_the_time_zone() -> None:
    timing = Cron("30 0 * * *", "Europe/Prague")
    found = Window(timing, skip=(date(2026, 6, 2),)).upcoming(2, after=datetime(2026, 5, 31, 22, 0, tzinfo=UTC))
    assert [f"{time:%d %H:%M %Z}" for time in found] == ["01 00:30 CEST", "03 00:30 CEST"]


def test_a_date_whose_midnight_comes_twice_is_skipped_as_a_whole() -> None:
    # In Havana the clock is set back from one o'clock to midnight.
    zone, day = ZoneInfo("America/Havana"), date(2026, 11, 1)
    window = Window(Cron("*/30 * * * *", "America/Havana"), skip=(day,))
    times = islice(fire_times(window, instant(datetime(2026, 10, 31, tzinfo=UTC), 0)), 200)
    assert {moment_of(time).astimezone(zone).date() for time in times} & {day} == set()


def test_a_year_of_skipped_dates_is_passed_over_at_once() -> None:
    every = Every("100ms", start=FIRST)
    window = Window(every, skip=tuple((FIRST + timedelta(days=number)).date() for number in range(366)))
    assert moment_of(next_fire_time(window, 0)) == FIRST + timedelta(days=366)


def test_a_window_without_bounds_is_stored_as_its_timing() -> None:
    timing = Cron("@daily")
    assert to_stored(Window(timing)) == to_stored(timing)
    assert from_stored(to_stored(Window(timing, starts=FIRST))) == timing
    assert next_fire_time(Window(At(FIRST), skip=(FIRST.date(),)), 0) == NEVER


@pytest.mark.parametrize(
    "stored",
    [
        '{"window":{"cron":"@daily"},"skip":["someday"]}',
        '{"window":[],"skip":[]}',
        '{"window":{"cron":"@daily"},"starts":"x"}',
        '{"window":{"cron":"@daily","zone":"Nowhere"}}',
    ],
)
def test_a_stored_window_that_cannot_be_read_is_refused(stored: str) -> None:
    with pytest.raises(InvalidSchedule):
        window_from_stored(stored)
