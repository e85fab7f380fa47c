"""Timings of schedules: `Cron`, `Every` and `At`, and their fire times. Pure: times in, times out.

Times are microseconds since the epoch. cronsim does the calendar arithmetic, on wall clocks without a time zone. This
module decides about wall clocks that are set forward or back:

* A time of day (neither minutes nor hours begin with `*`) comes once a day: if it is skipped, at the end of the gap; if
it comes twice, the
  first time.
* Any other expression (`*/30 * * * *`) follows elapsed time: it fires at every instant at which the wall clock matches.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, tzinfo
from itertools import takewhile
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
from cronsim import CronSim, CronSimError
from msgspec import Struct
from msgspec.structs import force_setattr

from perdure.core.codec.plain_json import plain_json
from perdure.core.printed_text import brief
from perdure.core.time.duration import NEVER, Duration, instant, microseconds, moment_of
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

#: Shortest interval, in microseconds.
SHORTEST = 100_000
#: Longest cron expression, in characters.
_LONGEST_EXPRESSION = 500
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND = timedelta(seconds=1)
_DAY = timedelta(days=1)
#: Nothing is scheduled beyond this year, where calendars end.
_LAST_YEAR = 9990


class Cron(Struct, frozen=True):
    """Fire by the calendar: a cron expression (five fields, six with seconds first) or an alias like `@daily`."""

    expression: str
    zone: str = "UTC"

    def __post_init__(self) -> None:
        _zone(self.zone)
        if not isinstance(self.expression, str) or len(self.expression) > _LONGEST_EXPRESSION:
            raise InvalidSchedule(f"{brief(self.expression)} is not a cron expression; {_EXAMPLE}")
        try:
            _Calendar(self.expression)
            if next(_wall(self.expression, datetime(2024, 1, 1)), None) is None:  # noqa: DTZ001 - a wall clock
                raise InvalidSchedule(f"the cron expression {brief(self.expression)} never fires: there is no such day")
        except CronSimError as error:
            raise InvalidSchedule(
                f"{brief(self.expression)} is not a cron expression: {str(error).lower()}; {_EXAMPLE}"
            ) from None

    def upcoming(self, count: int, *, after: datetime) -> list[datetime]:
        """The next fire times after a moment, in the schedule's time zone."""
        return _upcoming(self, count, after, _zone(self.zone))


class Every(Struct, frozen=True):
    """Fire at an interval of elapsed time, first at `start`, or one interval after the schedule is created."""

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
            raise InvalidSchedule(f"an interval of {brief(self.interval)} is too short; the shortest is 100 ms")
        force_setattr(self, "interval", timedelta(microseconds=length))

    def upcoming(self, count: int, *, after: datetime) -> list[datetime]:
        """The next fire times after a moment; without a `start`, the interval begins there."""
        timing = self if self.start is not None else Every(self.interval, start=after)
        return _upcoming(timing, count, after, UTC)


class At(Struct, frozen=True):
    """Fire once, at a `datetime` with a time zone."""

    moment: datetime

    def __post_init__(self) -> None:
        if not isinstance(self.moment, datetime) or self.moment.utcoffset() is None:
            raise InvalidSchedule(f"{brief(self.moment)} is not a point in time; give a datetime with a time zone")
        instant(self.moment, 0)

    def upcoming(self, count: int, *, after: datetime) -> list[datetime]:
        """The fire time, unless it has passed."""
        return _upcoming(self, count, after, self.moment.tzinfo or UTC)


Timing = Cron | Every | At


class Window(Struct, frozen=True):
    """A timing with its first and last moment and the dates on which it does not fire."""

    timing: Timing
    #: It fires from `starts` on and before `ends`.
    starts: datetime | None = None
    ends: datetime | None = None
    #: Dates in the time zone of the timing, in order.
    skip: tuple[date, ...] = ()

    def upcoming(self, count: int, *, after: datetime) -> list[datetime]:
        """The next fire times after a moment, in the time zone of the timing."""
        zone = zone_of(self.timing) if not isinstance(self.timing, At) else self.timing.moment.tzinfo or UTC
        return _upcoming(self, count, after, zone)


_EXAMPLE = "write one such as '30 2 * * MON-FRI' (minute, hour, day, month, weekday) or '@daily'"


def to_stored(timing: Timing | Window) -> str:
    """Encode a timing for the database."""
    if not isinstance(timing, Window):
        return plain_json(_stored(timing))
    if (timing.starts, timing.ends, timing.skip) == (None, None, ()):
        return plain_json(_stored(timing.timing))
    # Nested, so that a worker of a version without windows reports an error instead of firing on a skipped date.
    return plain_json(
        {
            "window": _stored(timing.timing),
            "starts": None if timing.starts is None else instant(timing.starts, 0),
            "ends": None if timing.ends is None else instant(timing.ends, 0),
            "skip": [day.isoformat() for day in timing.skip],
        }
    )


def _stored(timing: Timing) -> dict[str, Any]:
    match timing:
        case Cron(expression, zone):
            return {"cron": expression, "zone": zone}
        case Every(interval, start):
            return {"every": microseconds(interval), "start": None if start is None else instant(start, 0)}
        case At(moment):
            return {"at": instant(moment, 0)}


def from_stored(text: str) -> Timing:
    """Decode a stored timing. Raises `InvalidSchedule`, also if this machine does not know its time zone."""
    return window_from_stored(text).timing


def window_from_stored(text: str) -> Window:
    """Decode a stored timing with its bounds and skipped dates. Raises `InvalidSchedule`."""
    try:
        stored = msgspec.json.decode(text, type=dict[str, Any])
        if "window" not in stored:
            return Window(_timing_of(stored))
        starts, ends = (stored.get(name) for name in ("starts", "ends"))
        return Window(
            _timing_of(stored["window"]),
            None if starts is None else moment_of(starts),
            None if ends is None else moment_of(ends),
            tuple(sorted(date.fromisoformat(day) for day in stored.get("skip", ()))),
        )
    except InvalidSchedule:
        raise
    except (msgspec.MsgspecError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise InvalidSchedule(f"{text[:200]!r} is not the timing of a schedule: {error!r}") from None


def _timing_of(stored: dict[str, Any]) -> Timing:
    if "cron" in stored:
        return Cron(stored["cron"], stored.get("zone", "UTC"))
    if "every" in stored:
        start = stored.get("start")
        return Every(timedelta(microseconds=stored["every"]), None if start is None else moment_of(start))
    return At(moment_of(stored["at"]))


def fire_times(timing: Timing | Window, after: int) -> Iterator[int]:
    """All fire times after a time, in order."""
    match timing:
        case At(moment):
            at = instant(moment, 0)
            return iter([at] if at > after else [])
        case Every(interval, start):
            return _at_intervals(microseconds(interval), 0 if start is None else instant(start, 0), after)
        case Cron(expression, zone):
            return _by_calendar(expression, _zone(zone), after)
        case Window():
            return _in_window(timing, after)


def next_fire_time(timing: Timing | Window, after: int) -> int:
    """The first fire time after a time; `NEVER` if there is none."""
    return next(fire_times(timing, after), NEVER)


def latest_fire_times(timing: Timing | Window, low: int, high: int, count: int) -> list[int]:
    """The last `count` fire times from `low` on and before `high`, in order."""
    plain = timing.timing if isinstance(timing, Window) else timing
    span = microseconds(plain.interval) * count if isinstance(plain, Every) else 60_000_000
    found: list[int] = []
    while count and low < high:
        begin = max(low, high - span)
        found = list(takewhile(lambda fire_time: fire_time < high, fire_times(timing, begin - 1)))
        if begin == low or len(found) >= count:
            break
        span *= 2
    return found[-count:] if count else []


def _upcoming(timing: Timing | Window, count: int, after: datetime, zone: tzinfo) -> list[datetime]:
    wanted, found = check_count(count), fire_times(timing, instant(after, 0))
    return [moment_of(fire_time).astimezone(zone) for _, fire_time in zip(range(wanted), found, strict=False)]


def _zone(name: object) -> tzinfo:
    if name == "UTC":
        # Known even without a time zone database.
        return UTC
    try:
        if not isinstance(name, str):
            raise TypeError
        return ZoneInfo(name)
    except Exception:
        # Names of folders, of other files and of paths outside raise different errors.
        raise InvalidSchedule(
            f"there is no time zone {brief(name)} on this machine; name one such as 'Europe/Prague', or install tzdata"
        ) from None


def check_count(count: object) -> int:
    """Check a number of fire times. Raises `InvalidSchedule`."""
    if isinstance(count, int) and not isinstance(count, bool) and 0 <= count <= 1000:
        return count
    raise InvalidSchedule(f"{brief(count)} is not a number of fire times; give one from 0 to 1000")


def zone_of(timing: Timing) -> tzinfo:
    """Time zone of a timing: that of a `Cron`, otherwise UTC."""
    return _zone(timing.zone) if isinstance(timing, Cron) else UTC


def _in_window(window: Window, after: int) -> Iterator[int]:
    low = after if window.starts is None else max(after, instant(window.starts, 0) - 1)
    end = NEVER if window.ends is None else instant(window.ends, 0)
    zone, skip = zone_of(window.timing), frozenset(window.skip)
    while True:
        for fire_time in fire_times(window.timing, low):
            if fire_time >= end:
                return
            day = moment_of(fire_time).astimezone(zone).date() if skip else None
            if day is not None and day in skip:
                # On to the next date at once: an interval may have a million fire times on this one.
                low = max(fire_time, _midnight_after(day, zone) - 1)
                break
            yield fire_time
        else:
            return


def _midnight_after(day: date, zone: tzinfo) -> int:
    midnight = datetime.combine(day + _DAY, datetime.min.time(), tzinfo=zone)
    return (midnight - _EPOCH) // timedelta(microseconds=1)


def _at_intervals(interval: int, start: int, after: int) -> Iterator[int]:
    fire_time = max(start, start + ((after - start) // interval + 1) * interval)
    while fire_time < NEVER:
        yield fire_time
        fire_time += interval


class _Calendar:
    """A cron expression; `of_day` is True if it means times of day."""

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
    """Matching times after one, on a wall clock that is never set."""
    try:
        for time in CronSim(_Calendar(expression).text, after):
            if time.year > _LAST_YEAR:
                return
            yield time
    except OverflowError:
        return


def _by_calendar(expression: str, zone: tzinfo, after: int) -> Iterator[int]:
    # Rounded down to the second, because cronsim knows no fractions.
    since = moment_of(after).replace(microsecond=0)
    found = _times_of_day if _Calendar(expression).of_day else _instants
    for time in found(expression, zone, since):
        fire_time = (time - _EPOCH) // timedelta(microseconds=1)
        if fire_time > after:
            yield fire_time


def _times_of_day(expression: str, zone: tzinfo, since: datetime) -> Iterator[datetime]:
    """Each time of day once, in UTC: at the end of the gap if it is skipped, the first time if it comes twice."""
    last = since
    for wall in _wall(expression, _shown(zone, since)):
        time = wall.replace(tzinfo=zone).astimezone(UTC)
        if _shown(zone, time) != wall:
            # With the offset after the gap the time lies before the gap, and vice versa.
            before, behind = (wall.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (1, 0))
            time = _change(zone, before, behind)
        if time > last:
            last = time
            yield time


def _instants(expression: str, zone: tzinfo, since: datetime) -> Iterator[datetime]:
    """Every instant at which the wall clock matches, in UTC, from one change of the offset to the next."""
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
        # The instant of the change itself may match.
        since, shown = change, _shown(zone, change) - _SECOND


def _shown(zone: tzinfo, time: datetime) -> datetime:
    """Time on a wall clock of the zone."""
    return time.astimezone(zone).replace(tzinfo=None, fold=0)


def _offset(zone: tzinfo, time: datetime) -> timedelta:
    return time.astimezone(zone).utcoffset() or timedelta()


def _change(zone: tzinfo, before: datetime, behind: datetime) -> datetime:
    """The second between two times at which the offset changes."""
    old = _offset(zone, before)
    low, high = 0, int((behind - before).total_seconds())
    while high - low > 1:
        middle = (low + high) // 2
        if _offset(zone, before + timedelta(seconds=middle)) == old:
            low = middle
        else:
            high = middle
    return before + timedelta(seconds=high)
