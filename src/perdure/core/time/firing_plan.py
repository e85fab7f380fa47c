"""Planning of a schedule: which fire times start runs now, which are skipped and why, and when to plan again.

Pure: takes a schedule, the time, and whether its last run is unfinished; returns a plan with the schedule as it is
afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile

from msgspec import Struct
from msgspec.structs import replace

from perdure.core.time.cron import Window, fire_times, latest_fire_times, next_fire_time
from perdure.core.time.duration import NEVER
from perdure.core.time.schedule import LONGEST_QUEUE, Overlap, Schedule

#: Number of fire times that one transaction handles.
BATCH = 100
#: Bounds of the time until the next check of whether the last run has ended, in microseconds. The time is a tenth of
#: what the first fire time has waited.
SHORTEST_RECHECK = 1_000_000
LONGEST_RECHECK = 10_000_000


class SkippedTimes(Struct, frozen=True):
    """A range of fire times that start no runs, and the reason."""

    first: int
    last: int
    why: str


class FiringPlan(Struct, frozen=True, kw_only=True):
    """Actions for a schedule, all in one transaction."""

    #: Fire times that start a run.
    start: tuple[int, ...]
    skipped: tuple[SkippedTimes, ...]
    #: Fire time for which the last run is cancelled.
    cancel_for: int | None
    #: The schedule afterwards, apart from its last run.
    schedule: Schedule


def plan_firing(schedule: Schedule, now: int, *, busy: bool) -> FiringPlan:
    """Plan the fire times that are due at a time; `busy`: the schedule's last run has not ended."""
    timing = schedule.window
    late, skipped = _late(schedule, timing, now)
    chosen = (late + _on_time(schedule, timing, now, BATCH + 1 - len(late)))[: BATCH + 1]  # equivalent: constant: rest
    rest = chosen[BATCH:]  # only the first is used, so another one makes no difference
    chosen = chosen[:BATCH]
    overlaps = _OverlapPolicy(schedule, busy=busy)
    for time in overlaps.without_replaced(chosen):
        overlaps.take(time)
    following = rest[0] if rest else _following(schedule, timing, now, chosen)
    after = replace(
        schedule,
        next_fire_time=following,
        waiting=tuple(overlaps.waiting),
        last_fire_time=overlaps.start[-1] if overlaps.start else schedule.last_fire_time,
    )
    return FiringPlan(
        start=tuple(overlaps.start),
        skipped=tuple(skipped + overlaps.skipped),
        cancel_for=overlaps.cancel_for,
        schedule=replace(after, due_at=when_due(after, now)),
    )


def when_due(schedule: Schedule, now: int) -> int:
    """Time when a schedule has to be planned again."""
    if schedule.paused:
        return NEVER
    due = schedule.due(schedule.next_fire_time)
    if not schedule.waiting:
        return due
    waited = (now - schedule.waiting[0]) // 10
    return min(due, now + min(LONGEST_RECHECK, max(SHORTEST_RECHECK, waited)))


def _missed_before(schedule: Schedule, now: int) -> int:
    """Time before which fire times count as missed."""
    return now - round(schedule.misfire.grace * 1e6) - schedule.jitter


def _late(schedule: Schedule, timing: Window, now: int) -> tuple[list[int], list[SkippedTimes]]:
    """Missed fire times that are caught up on, and those that are not."""
    first, end = schedule.next_fire_time, _missed_before(schedule, now)
    if first >= end:
        return [], []
    limit, within = schedule.misfire.limit, schedule.misfire.within
    low = first if within is None else max(first, now - round(within * 1e6))
    if limit is None:
        chosen = list(_fire_times_between(timing, low, end, BATCH + 1))
    else:
        chosen = latest_fire_times(timing, low, end, limit)[: BATCH + 1]
    if chosen and chosen[0] == first:
        return chosen, []
    last = latest_fire_times(timing, first, chosen[0] if chosen else end, 1)
    return chosen, [SkippedTimes(first, last[0] if last else first, "missed")]


def _on_time(schedule: Schedule, timing: Window, now: int, count: int) -> list[int]:
    """Fire times that are due and not missed, in order."""
    low = max(schedule.next_fire_time, _missed_before(schedule, now))
    # In order: each waits for the one before it, whatever its jitter.
    return list(
        takewhile(lambda time: schedule.due(time) <= now, _fire_times_between(timing, low, now + 1, max(0, count)))
    )


def _fire_times_between(timing: Window, low: int, end: int, count: int) -> Iterator[int]:
    found = takewhile(lambda time: time < end, fire_times(timing, low - 1))
    return (time for _, time in zip(range(count), found, strict=False))


def _following(schedule: Schedule, timing: Window, now: int, chosen: list[int]) -> int:
    """The first fire time that was not handled."""
    if schedule.next_fire_time > now:
        return schedule.next_fire_time
    end = _missed_before(schedule, now)
    # Missed fire times are handled; of those that are due, the chosen ones.
    done = max([end - 1, schedule.next_fire_time - 1, *chosen[-1:]])
    return next_fire_time(timing, done)


class _OverlapPolicy:
    """Sorts fire times into start, wait and skip, by the overlap policy."""

    def __init__(self, schedule: Schedule, *, busy: bool) -> None:
        self._overlap = schedule.overlap
        self._busy = busy
        self.start: list[int] = []
        self.waiting = list(schedule.waiting)
        self.skipped: list[SkippedTimes] = []
        self.cancel_for: int | None = None
        while self.waiting and (not self._busy or self._overlap is Overlap.ALLOW):
            self._begin(self.waiting.pop(0))

    def without_replaced(self, times: list[int]) -> list[int]:
        """The fire times, or the last one if each would only be cancelled for the next."""
        if self._overlap is not Overlap.CANCEL:
            return times
        self.skipped += [SkippedTimes(time, time, "replaced") for time in times[:-1]]
        return times[-1:]

    def take(self, time: int) -> None:
        if self._overlap is Overlap.ALLOW or not (self._busy or self.waiting):
            self._begin(time)
        elif self._overlap is Overlap.SKIP:
            self.skipped.append(SkippedTimes(time, time, "overlap"))
        elif self._overlap is Overlap.QUEUE:
            if len(self.waiting) < LONGEST_QUEUE:
                self.waiting.append(time)
            else:
                self.skipped.append(SkippedTimes(time, time, "queue full"))
        else:
            self.skipped += [SkippedTimes(replaced, replaced, "replaced") for replaced in self.waiting]
            self.waiting = [time]
            self.cancel_for = time

    def _begin(self, time: int) -> None:
        self.start.append(time)
        self._busy = True
