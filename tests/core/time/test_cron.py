"""Cron expressions against an oracle that checks every minute, in every time zone whose clocks are set."""

from __future__ import annotations

import os
import random
import zoneinfo
from collections.abc import Iterator
from datetime import timedelta
from functools import cache

import pytest

from perdure import Cron
from perdure.core.time.cron import fire_times, next_fire_time
from tests.core.time.oracle import DAY, Calendar, has_changes

WHOLE = bool(os.environ.get("PERDURE_PROVE"))
FIRST, LAST = 2024, 2030 if WHOLE else 2026
EXPRESSIONS = 200
#: Expressions that fire more often a day are checked only in the days around each change, in the short version of the
#: test.
OFTEN = 24 if WHOLE else 2
AROUND = 2 * DAY

MINUTES = ("0", "30", "15", "59", "5,35", "10-20", "0-59/7", "*/30", "*/17", "*", "45/5")
HOURS = ("0", "1", "2", "3", "23", "0,2,3", "1-4", "*/6", "*/2", "*", "22-23", "2/1")
DAYS = ("*", "*", "*", "1", "L", "LW", "29", "31", "25-31", "1-7", "*/2", "15,L")
MONTHS = ("*", "*", "*", "3", "10", "MAR-APR", "9-11", "4,10", "2", "*/3")
WEEKDAYS = ("*", "*", "*", "SUN", "0", "7", "MON-FRI", "6,0", "5#2", "SUN#1", "0L", "0#5", "*/2")

#: What other implementations have got wrong, and what reaches every branch of this one.
TELLING = (
    ("30 2 * * *", "Europe/Prague"),
    ("*/30 * * * *", "Europe/Prague"),
    ("*/30 2 * * *", "Europe/Prague"),
    ("0 2,3 * * *", "America/New_York"),
    ("*/10 2 * * *", "Australia/Lord_Howe"),
    ("*/15 1 * * *", "Australia/Lord_Howe"),
    ("15,45 1,2 * * *", "Australia/Lord_Howe"),
    ("*/30 0 26 4 *", "Africa/Cairo"),
    ("*/30 1 26 4 *", "Africa/Cairo"),
    ("0 0 * * *", "Africa/Cairo"),
    ("*/20 0-1 * * FRI", "Africa/Cairo"),
    ("30 0 * * *", "America/Santiago"),
    ("* 23 * * SAT", "America/Santiago"),
    ("5 0 * * *", "Asia/Beirut"),
    ("30 1,2 * * *", "Antarctica/Troll"),
    ("*/30 1-3 * * *", "Antarctica/Troll"),
    ("30 2 * * *", "Africa/Casablanca"),
    ("*/45 * * * *", "Pacific/Chatham"),
    ("30 23 29 2 *", "Asia/Almaty"),
    ("*/30 23 29 2 *", "Asia/Almaty"),
    ("0 0 29 2 *", "Europe/London"),
    ("30 1 L * *", "Europe/London"),
)


def generated() -> list[str]:
    """The expressions: the same for everybody, no two alike."""
    draw = random.Random("perdure")
    found: dict[str, None] = {expression: None for expression, _ in TELLING}
    while len(found) < EXPRESSIONS:
        fields = [draw.choice(field) for field in (MINUTES, HOURS, DAYS, MONTHS, WEEKDAYS)]
        # "the 31st, in February" is refused; "the 31st or a Sunday, in February" is not.
        if fields[2] not in ("29", "31", "25-31") or fields[3] != "2" or not fields[4].startswith("*"):
            found[" ".join(fields)] = None
    return list(found)


@cache
def years() -> Calendar:
    return Calendar(FIRST, LAST)


@cache
def zones() -> list[str]:
    """One time zone of each kind: many have several names, or neighbours that set their clocks at the same moments."""
    names = sorted(zoneinfo.available_timezones() - {"localtime"})
    if not WHOLE:
        names = sorted({zone for _, zone in TELLING} | set(random.sample(names, 12)))
    kinds = {years().spans(name): name for name in names if has_changes(name, FIRST, LAST)}
    return sorted(kinds.values())


def windows(expression: str, zone: str) -> Iterator[tuple[int, int]]:
    """The minutes to look at: all, or those around every change, of an expression that comes often."""
    bits = years().wall(expression)
    if bits.bit_count() / len(years().days) <= OFTEN:
        yield 0, years().minutes
        return
    for start, _, _ in years().spans(zone):
        yield max(0, start - AROUND), min(years().minutes, start + AROUND)


def check(expression: str, zone: str) -> int:
    """Compare every slot; how many there were."""
    expected = years().times(expression, zone)
    begin = years().first
    timing = Cron(expression, zone)
    count = 0
    for start, end in windows(expression, zone):
        epoch = int(begin.timestamp()) // 60
        found: list[int] = []
        for slot in fire_times(timing, (epoch + start) * 60_000_000 - 1):
            minute, rest = divmod(slot, 60_000_000)
            assert rest == 0
            if minute - epoch >= end:
                break
            found.append(minute - epoch)
        wanted = [minute for minute in set_bits(expected, start, end)]
        if found != wanted:
            [*wrong] = sorted(set(found) ^ set(wanted))
            moments = [str(begin + timedelta(minutes=minute)) for minute in wrong[:5]]
            assert found == sorted(set(found)), f"{expression} in {zone}: a slot came twice, or out of order"
            pytest.fail(f"{expression} in {zone} is wrong at {moments}: missed or too many")
        count += len(found)
    return count


def set_bits(bits: int, start: int, end: int) -> Iterator[int]:
    data = ((bits >> start) & (1 << end - start) - 1).to_bytes((end - start) // 8 + 1, "little")
    for place, byte in enumerate(data):
        if byte:
            yield from (start + place * 8 + bit for bit in range(8) if byte >> bit & 1)


@pytest.mark.parametrize(("expression", "zone"), TELLING)
def test_slots_are_where_the_oracle_finds_them(expression: str, zone: str) -> None:
    assert check(expression, zone) > 0


@pytest.mark.parametrize(("expression", "zone"), TELLING)
def test_the_next_slot_is_the_same_wherever_one_begins_to_look(expression: str, zone: str) -> None:
    expected = years().times(expression, zone)
    epoch = int(years().first.timestamp()) // 60
    timing = Cron(expression, zone)
    for start, _, _ in years().spans(zone)[1:4]:
        for minute in range(start - 180, start + 180, 13):
            after = expected >> minute + 1
            wanted = minute + (after & -after).bit_length() if after else years().minutes
            # Not on the minute: the slot of that very minute is over.
            found = next_fire_time(timing, (epoch + minute) * 60_000_000 + 17) // 60_000_000 - epoch
            assert min(found, years().minutes) == wanted


@pytest.mark.timeout(7200 if WHOLE else 120)
def test_no_slot_is_missed_or_doubled_in_any_time_zone() -> None:
    pairs = [(expression, zone) for expression in generated() for zone in zones()]
    if not WHOLE:
        pairs = random.sample(pairs, 24)
    assert sum(check(expression, zone) for expression, zone in pairs) > len(pairs)
    assert len(generated()) == EXPRESSIONS
    assert not WHOLE or len(zones()) >= 30
