"""When a schedule is to run: by cron, at an interval, or once. Pure: times in, times out.

Times are microseconds since the epoch, and a *slot* is one at which a schedule is to run. The calendar's arithmetic is cronsim's, on
wall clocks without a time zone; what becomes of a wall clock that is set forward or back is decided here:

* A time of day (neither the minutes nor the hours begin with `*`) comes once a day: one that is skipped comes at the end of the gap, one
  that comes twice counts the first time.
* Anything else (`*/30 * * * *`) follows the time that really passes: every instant at which the wall clock matches.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import takewhile
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
from cronsim import CronSim, CronSimError
from msgspec import Struct
from msgspec.structs import force_setattr

from perdure.core.time.duration import FAR, Duration, instant, microseconds, moment_of
from perdure.errors import InvalidDuration, InvalidSchedule

ALIASES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}

#: The shortest interval, in microseconds.
SHORTEST = 100_000
#: Expressions are short; a longer one is a mistake.
_LONGEST_EXPRESSION = 500
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND = timedelta(seconds=1)
_DAY = timedelta(days=1)
#: Calendars end there; nothing is scheduled beyond.
_LAST_YEAR = 9990


class Cron(Struct, frozen=True):
    """By the calendar: a cron expression (five fields; six with seconds first) or an alias such as `@daily`, in a time zone."""

    expression: str
    zone: str = "UTC"

    def __post_init__(self) -> None:
        _zone(self.zone)
        if not isinstance(self.expression, str) or len(self.expression) > _LONGEST_EXPRESSION:
            raise InvalidSchedule(f"{str(self.expression)[:100]!r} is not a cron expression; {_EXAMPLE}")
        try:
            _Calendar(self.expression)
            if next(_wall(self.expression, datetime(2024, 1, 1)), None) is None:  # noqa: DTZ001 - a wall clock
                raise InvalidSchedule(f"the cron expression {self.expression!r} never comes: there is no such day")
        except CronSimError as error:
            raise InvalidSchedule(
                f"{self.expression!r} is not a cron expression: {str(error).lower()}; {_EXAMPLE}"
            ) from None

    def upcoming(self, count: int, *, after: datetime) -> list[datetime]:
        """The next times after a moment, in the schedule's time zone."""
        return _upcoming(self, count, after, _zone(self.zone))


class Every(Struct, frozen=True):
    """At an interval, of time that really passes. The first time is at `start`, or one interval after the schedule is created."""

    interval: Duration
    start: datetime | None = None

    def __post_init__(self) -> None:
        try:
            length = microseconds(self.interval)
            if self.start is not None:
                instant(self.start, 0)
        except InvalidDuration as error:
            raise InvalidSchedule(f"an interval cannot be scheduled: {error}") from None
        if length < SHORTEST:
            raise InvalidSchedule(f"an interval of {self.interval!r} is too short; the shortest is 100 ms")
        force_setattr(self, "interval", timedelta(microseconds=length))

    def upcoming(self, count: int, *, after: datetime) -> list[datetime]:
        """The next times after a moment; without a `start`, the interval begins there."""
        timing = self if self.start is not None else Every(self.interval, start=after)
        return _upcoming(timing, count, after, UTC)


class At(Struct, frozen=True):
    """Once, at a moment: a `datetime` with a time zone."""

    moment: datetime

    def __post_init__(self) -> None:
        if not isinstance(self.moment, datetime) or self.moment.utcoffset() is None:
            raise InvalidSchedule(f"{self.moment!r} is no point in time; give a datetime with a time zone")
        instant(self.moment, 0)

    def upcoming(self, count: int, *, after: datetime) -> list[datetime]:
        """The moment, unless it is over."""
        return _upcoming(self, count, after, self.moment.tzinfo or UTC)


Timing = Cron | Every | At

_EXAMPLE = "write such as '30 2 * * MON-FRI' (minute, hour, day, month, weekday) or '@daily'"


def to_stored(timing: Timing) -> str:
    """A timing as JSON, as the database has it."""
    return msgspec.json.encode(_stored(timing)).decode()


def _stored(timing: Timing) -> dict[str, Any]:
    match timing:
        case Cron(expression, zone):
            return {"cron": expression, "zone": zone}
        case Every(interval, start):
            return {"every": microseconds(interval), "start": None if start is None else instant(start, 0)}
        case At(moment):
            return {"at": instant(moment, 0)}


def from_stored(text: str) -> Timing:
    """A timing from what the database has. Raises `InvalidSchedule`, also where this machine does not know a time zone."""
    try:
        stored = msgspec.json.decode(text, type=dict[str, Any])
        if "cron" in stored:
            return Cron(stored["cron"], stored.get("zone", "UTC"))
        if "every" in stored:
            start = stored.get("start")
            return Every(timedelta(microseconds=stored["every"]), None if start is None else moment_of(start))
        return At(moment_of(stored["at"]))
    except (msgspec.MsgspecError, KeyError, TypeError, OverflowError) as error:
        raise InvalidSchedule(f"{text[:200]!r} is not the timing of a schedule: {error!r}") from None


def fire_times(timing: Timing, after: int) -> Iterator[int]:
    """Every slot past a time, in order."""
    match timing:
        case At(moment):
            at = instant(moment, 0)
            return iter([at] if at > after else [])
        case Every(interval, start):
            return _at_intervals(microseconds(interval), 0 if start is None else instant(start, 0), after)
        case Cron(expression, zone):
            return _by_calendar(expression, _zone(zone), after)


def next_fire_time(timing: Timing, after: int) -> int:
    """The first slot past a time; `FAR` if there is none."""
    return next(fire_times(timing, after), FAR)


def latest_fire_times(timing: Timing, low: int, high: int, count: int) -> list[int]:
    """The last so many slots from `low` on and before `high`, in order, however many there are before them."""
    span = microseconds(timing.interval) * count if isinstance(timing, Every) else 60_000_000
    found: list[int] = []
    while count and low < high:
        begin = max(low, high - span)
        found = list(takewhile(lambda slot: slot < high, fire_times(timing, begin - 1)))
        if begin == low or len(found) >= count:
            break
        span *= 2
    return found[-count:] if count else []


def _upcoming(timing: Timing, count: int, after: datetime, zone: tzinfo) -> list[datetime]:
    found = fire_times(timing, instant(after, 0))
    return [moment_of(slot).astimezone(zone) for _, slot in zip(range(count), found, strict=False)]


def _zone(name: object) -> tzinfo:
    if name == "UTC":
        # Known also where there are no time zones at all.
        return UTC
    try:
        if not isinstance(name, str):
            raise TypeError
        return ZoneInfo(name)
    except Exception:
        # Whatever it is called, and whatever lies there: a folder, a file that is none, a path that leads elsewhere.
        raise InvalidSchedule(
            f"there is no time zone {name!r} on this machine; name one such as 'Europe/Prague', or install tzdata"
        ) from None


def _at_intervals(interval: int, start: int, after: int) -> Iterator[int]:
    slot = max(start, start + ((after - start) // interval + 1) * interval)
    while slot < FAR:
        yield slot
        slot += interval


class _Calendar:
    """A cron expression, and whether it means times of day."""

    def __init__(self, expression: str) -> None:
        text = expression.strip()
        self.text = ALIASES.get(text.lower(), text) if text.startswith("@") else text
        if self.text.startswith("@"):
            raise CronSimError(f"there is no {text}, only {', '.join(ALIASES)}")
        fields = self.text.split()
        CronSim(self.text, datetime(2024, 1, 1))  # noqa: DTZ001 - a wall clock
        minutes, hours = fields[-5:-3]
        self.of_day = not minutes.startswith("*") and not hours.startswith("*")


def _wall(expression: str, after: datetime) -> Iterator[datetime]:
    """Every time past one that a wall clock shows which never is set."""
    try:
        for time in CronSim(_Calendar(expression).text, after):
            if time.year > _LAST_YEAR:
                return
            yield time
    except OverflowError:
        return


def _by_calendar(expression: str, zone: tzinfo, after: int) -> Iterator[int]:
    # To the second below: cronsim knows no parts of seconds.
    since = moment_of(after).replace(microsecond=0)
    found = _times_of_day if _Calendar(expression).of_day else _instants
    for time in found(expression, zone, since):
        slot = (time - _EPOCH) // timedelta(microseconds=1)
        if slot > after:
            yield slot


def _times_of_day(expression: str, zone: tzinfo, since: datetime) -> Iterator[datetime]:
    """Each time of day once, in UTC: one that is skipped at the end of the gap, one that comes twice at first."""
    last = since
    for wall in _wall(expression, _shown(zone, since)):
        time = wall.replace(tzinfo=zone).astimezone(UTC)
        if _shown(zone, time) != wall:
            # Taken with the offset from after the gap it lies before it, and the other way round.
            before, behind = (wall.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (1, 0))
            time = _change(zone, before, behind)
        if time > last:
            last = time
            yield time


def _instants(expression: str, zone: tzinfo, since: datetime) -> Iterator[datetime]:
    """Every real moment at which the wall clock matches, in UTC: from one change of the offset to the next."""
    shown = _shown(zone, since)
    while True:
        offset = _offset(zone, since)
        looked, change = since, None
        for wall in _wall(expression, shown):
            time = (wall - offset).replace(tzinfo=UTC)
            while change is None and looked < time:
                looked, before = looked + _DAY, looked
                change = _change(zone, before, looked) if _offset(zone, looked) != offset else None
            if change is not None and change <= time:
                break
            yield time
        if change is None:
            return
        # The moment of the change itself may match.
        since, shown = change, _shown(zone, change) - _SECOND


def _shown(zone: tzinfo, time: datetime) -> datetime:
    """What a wall clock shows."""
    return time.astimezone(zone).replace(tzinfo=None, fold=0)


def _offset(zone: tzinfo, time: datetime) -> timedelta:
    return time.astimezone(zone).utcoffset() or timedelta()


def _change(zone: tzinfo, before: datetime, behind: datetime) -> datetime:
    """The second at which the offset changes between two times."""
    old = _offset(zone, before)
    low, high = 0, int((behind - before).total_seconds())
    while high - low > 1:
        middle = (low + high) // 2
        if _offset(zone, before + timedelta(seconds=middle)) == old:
            low = middle
        else:
            high = middle
    return before + timedelta(seconds=high)
