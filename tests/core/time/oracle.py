"""An oracle of cron expressions: it checks every minute of some years.

It shares nothing with the code under test, nor with the library behind that code, except for the time zone database. A
set of minutes is one large integer with a bit for each minute, so that a minute costs nanoseconds.
"""

from __future__ import annotations

import calendar
from datetime import UTC, date, datetime, timedelta
from functools import cache, lru_cache
from zoneinfo import ZoneInfo

DAY = 24 * 60
NAMES = {
    **{name: number for number, name in enumerate(["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"])},
    **{
        name: number
        for number, name in enumerate(
            ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"], start=1
        )
    },
}


def numbers(field: str, low: int, high: int) -> set[int]:
    """Values of a field of plain numbers, ranges and steps."""
    found: set[int] = set()
    for part in field.split(","):
        span, _, step = part.partition("/")
        if span == "*":
            first, last = low, high
        elif "-" in span:
            first, last = (NAMES.get(end) or int(NAMES.get(end, end)) for end in span.split("-"))
        else:
            first = int(NAMES.get(span, span))
            last = high if step else first
        found |= set(range(first, last + 1, int(step or 1)))
    return found


def is_day(text: str, day: date) -> bool:
    """Tell whether a day of the month matches a field: a number, L for the last day, LW for the last weekday."""
    last = calendar.monthrange(day.year, day.month)[1]
    for part in text.split(","):
        if part == "L":
            if day.day == last:
                return True
        elif part == "LW":
            working = [number for number in range(1, last + 1) if day.replace(day=number).isoweekday() <= 5]
            if day.day == working[-1]:
                return True
        elif day.day in numbers(part, 1, 31):
            return True
    return False


def is_weekday(text: str, day: date) -> bool:
    """Tell whether a day matches a field of weekdays: 5#2 is the second Friday, 5L the last."""
    today = day.isoweekday() % 7
    last = calendar.monthrange(day.year, day.month)[1]
    for part in text.split(","):
        if "#" in part:
            name, _, which = part.partition("#")
            if today == int(NAMES.get(name, name)) % 7 and (day.day - 1) // 7 + 1 == int(which):
                return True
        elif part.endswith("L"):
            if today == int(part[:-1]) % 7 and day.day + 7 > last:
                return True
        elif today in {number % 7 for number in numbers(part, 0, 7)}:
            return True
    return False


class Calendar:
    """The minutes of some years, on a wall clock that is never set."""

    def __init__(self, first: int, last: int) -> None:
        # A week more at both ends: wall clocks are up to a day ahead of UTC, or behind it.
        self.begin = datetime(first, 1, 1) - timedelta(days=7)
        self.days = [
            self.begin.date() + timedelta(days=number)
            for number in range((date(last + 1, 1, 1) - date(first, 1, 1)).days + 14)
        ]
        self.first = datetime(first, 1, 1, tzinfo=UTC)
        self.minutes = (date(last + 1, 1, 1) - date(first, 1, 1)).days * DAY

    @lru_cache(maxsize=2)  # noqa: B019 - there are a handful of calendars
    def wall(self, expression: str) -> int:
        """The minutes of an expression."""
        minutes, hours, days, months, weekdays = expression.upper().split()
        of_day = sum(1 << hour * 60 + minute for hour in numbers(hours, 0, 23) for minute in numbers(minutes, 0, 59))
        wanted_months = numbers(months, 1, 12)
        either = not days.startswith("*") and not weekdays.startswith("*")
        bits = bytearray(len(self.days) * DAY // 8)
        pattern = of_day.to_bytes(DAY // 8, "little")
        for place, day in enumerate(self.days):
            tests = [is_day(days, day), is_weekday(weekdays, day)]
            if day.month in wanted_months and (any(tests) if either else all(tests)):
                bits[place * DAY // 8 : (place + 1) * DAY // 8] = pattern
        return int.from_bytes(bits, "little")

    def times(self, expression: str, zone: str) -> int:
        """The minutes in UTC, from the first of the years on, at which an expression comes in a time zone."""
        minutes, hours, *_ = expression.split()
        wall = self.wall(expression)
        if minutes.startswith("*") or hours.startswith("*"):
            return self._whenever(wall, zone)
        return self._once_each(wall, zone)

    def _whenever(self, wall: int, zone: str) -> int:
        """Every real minute at which the wall clock matches."""
        found = 0
        for start, end, shift in self.spans(zone):
            found |= ((wall >> start + shift) & (1 << end - start) - 1) << start
        return found

    def _once_each(self, wall: int, zone: str) -> int:
        """Every matching minute of the wall clock when it first comes, or when the clock is set past it."""
        found = shown = 0
        last = None
        for start, end, shift in self.spans(zone):
            here = ((1 << end - start) - 1) << start + shift
            found |= (wall & here & ~shown) >> shift if shift >= 0 else (wall & here & ~shown) << -shift
            if last is not None and start + shift > last:
                gap = ((1 << start + shift - last) - 1) << last
                if wall & gap:
                    found |= 1 << start
            shown |= here
            last = end + shift
        return found

    @cache  # noqa: B019 - there are a handful of calendars
    def spans(self, zone: str) -> tuple[tuple[int, int, int], ...]:
        """Runs of minutes in UTC of one offset: from, to, and how far the minutes of the wall clock are from them."""
        place = ZoneInfo(zone)
        ahead = int((self.first.replace(tzinfo=None) - self.begin).total_seconds()) // 60

        def shift(minute: int) -> int:
            offset = (self.first + timedelta(minutes=minute)).astimezone(place).utcoffset()
            assert offset is not None
            return ahead + int(offset.total_seconds()) // 60

        starts = [0]
        for quarter in range(0, self.minutes, DAY // 4):
            if shift(quarter) != shift(quarter + DAY // 4):
                starts += [m for m in range(quarter + 1, quarter + DAY // 4 + 1) if shift(m) != shift(m - 1)]
        return tuple((start, end, shift(start)) for start, end in zip(starts, [*starts[1:], self.minutes], strict=True))


def has_changes(zone: str, first: int, last: int) -> bool:
    """Tell whether the clocks of a time zone are set in these years."""
    place = ZoneInfo(zone)
    days = (date(last + 1, 1, 1) - date(first, 1, 1)).days
    moments = (datetime(first, 1, 1, tzinfo=UTC) + timedelta(days=number) for number in range(days))
    return len({moment.astimezone(place).utcoffset() for moment in moments}) > 1
