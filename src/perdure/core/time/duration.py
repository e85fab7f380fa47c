"""Durations and points in time, as users write them and as they are stored.

A duration is a `timedelta`, a number of seconds, or text such as `"1h30m"`: numbers with the units w, d, h, m, s, ms
and us, each unit once, the largest first. It is not negative and at most a hundred years. Inside the engine a duration
is a number of seconds, or of microseconds next to a stored time.
"""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from perdure.core.printed_text import brief
from perdure.errors import InvalidDuration

Duration = str | int | float | timedelta
#: A point in time: a datetime with a time zone, or a duration from now.
Moment = datetime | Duration

#: "Never", as a wake-up time or a deadline: the last microsecond of the year 9999. Times in the database are never
#: NULL, because `LEAST(NULL, now)` differs between databases.
NEVER = 253_402_300_799_999_999

_UNITS = {
    "w": 604_800_000_000,
    "d": 86_400_000_000,
    "h": 3_600_000_000,
    "m": 60_000_000,
    "s": 1_000_000,
    "ms": 1_000,
    "us": 1,
}
_PART = re.compile(r"\s*([0-9]{1,18}(?:\.[0-9]{1,18})?)\s*([a-z]+)\s*", re.ASCII)
_LIMIT = 100 * 366 * _UNITS["d"]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_ACCEPTED = 'write a timedelta, a number of seconds, or text such as "250ms", "1.5s", "1h30m", "3d" or "2w"'


def seconds(value: Duration) -> float:
    """Convert a duration to seconds. Raises `InvalidDuration`."""
    if isinstance(value, float):
        _check(value, _LIMIT // 1_000_000, value)
        return value
    return microseconds(value) / 1_000_000


def microseconds(value: Duration) -> int:
    """Convert a duration to whole microseconds, rounded. Raises `InvalidDuration`."""
    if isinstance(value, float):
        return round(seconds(value) * 1_000_000)
    if isinstance(value, str):
        result = _parse(value)
    elif isinstance(value, timedelta):
        result = value // _MICROSECOND
    elif isinstance(value, int) and not isinstance(value, bool):
        result = value * 1_000_000
    else:
        raise InvalidDuration(f"{brief(value)} is not a duration; {_ACCEPTED}")
    _check(result, _LIMIT, value)
    return result


def instant(value: datetime | Duration, now: int) -> int:
    """Convert an aware `datetime`, or a duration from `now`, to microseconds since the epoch.

    Raises `InvalidDuration`.
    """
    if not isinstance(value, datetime):
        return min(now + microseconds(value), NEVER)
    if value.utcoffset() is None:
        raise InvalidDuration(
            f"{brief(value)} has no time zone, so it is not a point in time; "
            "add one: datetime(..., tzinfo=UTC), or a ZoneInfo"
        )
    result = (value - _EPOCH) // _MICROSECOND
    if result < 0:
        raise InvalidDuration(f"{brief(value)} is before 1970; give a later point in time")
    return min(result, NEVER)


def moment_of(time: int) -> datetime:
    """Convert a stored time to a datetime."""
    return _EPOCH + timedelta(microseconds=time)


#: Units in which lengths of time are written, and their sizes in seconds.
_SHOWN_UNITS = ((86_400, "d"), (3_600, "h"), (60, "m"), (1, "s"))


def length(microseconds: int) -> str:
    """A length of time in two units at most: `2 h 14 m`, `1.25 s`, `320 ms`."""
    if microseconds < 0:
        return f"-{length(-microseconds)}"
    if microseconds < 1_000:
        return f"{microseconds} µs" if microseconds else "0 s"
    if microseconds < 1_000_000:
        return f"{microseconds / 1_000:.3g} ms" if microseconds < 999_500 else "1 s"
    if microseconds < 59_950_000:
        return f"{microseconds / 1e6:.3g} s"
    seconds = round(microseconds / 1e6)
    for index, (size, unit) in enumerate(_SHOWN_UNITS):
        if seconds >= size:
            more, smaller = (seconds % size) // _SHOWN_UNITS[index + 1][0], _SHOWN_UNITS[index + 1][1]
            return f"{seconds // size} {unit} {more} {smaller}" if more else f"{seconds // size} {unit}"
    return "0 s"


def _parse(text: str) -> int:
    total = Decimal(0)
    position, previous = 0, math.inf
    while part := _PART.match(text, position):
        number, unit = part.groups()
        size = _UNITS.get(unit)
        if size is None:
            raise InvalidDuration(f"{_shown(text)} is not a duration: {unit[:20]!r} is not a unit; {_ACCEPTED}")
        if size >= previous:
            raise InvalidDuration(
                f"{_shown(text)} is not a duration: each unit goes once, the largest first; {_ACCEPTED}"
            )
        total += Decimal(number) * size
        position, previous = part.end(), size
    if position == 0 or position != len(text):
        meant = f'did you mean {text} seconds, "{text}s"? ' if text.isascii() and text.isdigit() else ""
        raise InvalidDuration(f"{_shown(text)} is not a duration; {meant}{_ACCEPTED}")
    return round(total)


def _check(amount: float, limit: int, value: Duration) -> None:
    if isinstance(amount, float) and math.isnan(amount):
        raise InvalidDuration(f"NaN is not a duration; {_ACCEPTED}")
    if amount < 0:
        raise InvalidDuration(f"{_shown(value)} is negative, which is not a duration; give zero or more")
    if amount > limit:
        raise InvalidDuration(f"{_shown(value)} is over 100 years, the longest duration")


def _shown(value: Duration) -> str:
    if isinstance(value, int) and abs(value) >= 10**18:
        return "a number of 19 digits or more"
    return repr(value[:100] if isinstance(value, str) else value)
