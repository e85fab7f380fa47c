from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.time.duration import NEVER, instant, microseconds, seconds
from perdure.errors import InvalidDuration, UsageError

NOW = 1_700_000_000_000_000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1h30m", 5400.0),
        ("1h 30m", 5400.0),
        (" 3d ", 259_200.0),
        ("250ms", 0.25),
        ("250us", 0.00025),
        ("2w", 1_209_600.0),
        ("1.5s", 1.5),
        ("1w2d3h4m5s6ms7us", 604_800 + 2 * 86_400 + 3 * 3600 + 4 * 60 + 5.006007),
        ("0s", 0.0),
        ("90 m", 5400.0),
        ("5200w", 5200 * 604_800.0),
    ],
)
def test_text_is_read_as_numbers_with_units(text: str, expected: float) -> None:
    assert seconds(text) == expected


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        " ",
        "5",
        "s",
        "1x",
        "1H",
        "1 month",
        "-1s",
        "+1s",
        "1s-",
        "1m1h",
        "1s1s",
        "1h,30m",
        "1.s",
        ".5s",
        "1..5s",
        "1e3s",
        "\u0661s",
        "1h30",
        "inf",
        "nan",
        "1_000s",
        "9" * 5000 + "s",
        "1s" * 5000,
        "5300w",
        "999999999999999999w",
        "1m\0",
    ],
)
def test_other_text_is_refused_and_the_message_shows_what_is_accepted(wrong: str) -> None:
    for read in (seconds, microseconds):
        with pytest.raises(InvalidDuration) as caught:
            read(wrong)
        assert "1h30m" in str(caught.value) or "100 years" in str(caught.value)
        assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    "wrong",
    [
        -1,
        -0.001,
        timedelta(microseconds=-1),
        float("nan"),
        float("inf"),
        float("-inf"),
        1e300,
        10**12,
        10**400,
        -(10**400),
        timedelta.max,
        timedelta.min,
        True,
        False,
        None,
        b"1s",
        [],
        1j,
        date(2030, 1, 1),
    ],
)
def test_what_is_no_duration_is_refused_as_a_usage_error(wrong: Any) -> None:
    for read in (seconds, microseconds):
        with pytest.raises(InvalidDuration) as caught:
            read(wrong)
        assert isinstance(caught.value, UsageError)


@given(st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=36_500)))
def test_a_timedelta_keeps_every_microsecond(value: timedelta) -> None:
    assert timedelta(microseconds=microseconds(value)) == value


@given(st.integers(0, 3_000_000_000))
def test_a_number_is_of_seconds(value: int) -> None:
    assert seconds(value) == value
    assert microseconds(value) == value * 1_000_000
    assert microseconds(float(value)) == value * 1_000_000


@given(st.integers(0, 10**15))
def test_text_is_exact_where_a_float_would_not_be(number: int) -> None:
    assert microseconds(f"{number}us") == number
    assert microseconds(f"{number // 1000}.{number % 1000:03}ms") == number


@given(st.lists(st.sampled_from("wdhms"), unique=True, min_size=1), st.data())
def test_parts_add_up(units: list[str], data: st.DataObject) -> None:
    sizes = {"w": 604_800, "d": 86_400, "h": 3600, "m": 60, "s": 1}
    units.sort(key="wdhms".index)
    numbers = [data.draw(st.integers(0, 500)) for _ in units]
    text = data.draw(st.sampled_from(["", " "])).join(f"{n}{u}" for n, u in zip(numbers, units, strict=True))
    assert seconds(text) == sum(n * sizes[u] for n, u in zip(numbers, units, strict=True))


@given(st.text(max_size=20))
def test_any_text_is_a_duration_or_a_clear_error(text: str) -> None:
    try:
        assert 0 <= seconds(text) < 100 * 366 * 86_400 + 1
    except InvalidDuration:
        pass


def test_a_fraction_of_a_microsecond_is_rounded_for_the_database_only() -> None:
    assert seconds(1e-9) == 1e-9
    assert microseconds(1e-9) == 0
    assert microseconds("1.6us") == 2


@given(st.datetimes(min_value=datetime(1970, 1, 2)))
def test_an_aware_datetime_is_its_own_instant(naive: datetime) -> None:
    moment = naive.replace(tzinfo=UTC)
    assert datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=instant(moment, NOW)) == moment


def test_the_zone_of_a_datetime_counts() -> None:
    zone = timezone(timedelta(hours=2))
    assert instant(datetime(2030, 1, 1, 2, tzinfo=zone), NOW) == instant(datetime(2030, 1, 1, tzinfo=UTC), NOW)


def test_the_repeated_hour_of_autumn_is_two_instants() -> None:
    prague = ZoneInfo("Europe/Prague")
    first = datetime(2026, 10, 25, 2, 30, tzinfo=prague)
    assert instant(first.replace(fold=1), NOW) - instant(first, NOW) == 3_600_000_000


def test_a_naive_datetime_is_refused_with_the_remedy() -> None:
    with pytest.raises(InvalidDuration, match=r"no time zone.*tzinfo=UTC"):
        instant(datetime(2030, 1, 1), NOW)


def test_a_datetime_before_the_epoch_is_refused() -> None:
    with pytest.raises(InvalidDuration, match="1970"):
        instant(datetime(1969, 12, 31, tzinfo=UTC), NOW)


def test_a_duration_counts_from_now() -> None:
    assert instant("1s", NOW) == NOW + 1_000_000
    assert instant(timedelta(days=1), NOW) == NOW + 86_400_000_000
    assert instant(0, NOW) == NOW


def test_no_instant_is_later_than_never() -> None:
    assert instant(datetime.max.replace(tzinfo=UTC), NOW) == NEVER
    assert instant(datetime.max.replace(tzinfo=timezone(timedelta(hours=-12))), NOW) == NEVER
    assert instant("5200w", NEVER - 1) == NEVER


@pytest.mark.parametrize("wrong", [date(2030, 1, 1), None, True, "tomorrow", object()])
def test_what_is_neither_a_datetime_nor_a_duration_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidDuration):
        instant(wrong, NOW)
