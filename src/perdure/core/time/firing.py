"""What a schedule is to do now: which slots become runs, which are passed over and why, and when to look again.

Pure: a schedule, the time and whether its last run goes on, in; a plan and the schedule as it is afterwards, out.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile

from msgspec import Struct
from msgspec.structs import replace

from perdure.core.time.cron import Timing, fire_times, latest_fire_times, next_fire_time
from perdure.core.time.duration import FAR
from perdure.core.time.schedule import LONGEST_QUEUE, Overlap, Schedule

#: Slots that are dealt with in one transaction.
BATCH = 100
#: How long until the next look at whether the run that slots wait for has ended, in microseconds: a tenth of the time that the first has
#: waited, within these bounds.
SHORTEST_RECHECK = 1_000_000
LONGEST_RECHECK = 10_000_000


class SkippedTimes(Struct, frozen=True):
    """Slots that become no runs: from one to another, and why."""

    first: int
    last: int
    why: str


class FiringPlan(Struct, frozen=True, kw_only=True):
    """What to do, all of it in one transaction."""

    start: tuple[int, ...]
    passed: tuple[SkippedTimes, ...]
    #: Ask the last run to stop, for the sake of this slot.
    cancel_for: int | None
    #: The schedule afterwards, except for the run that was last started.
    schedule: Schedule


def plan_firing(schedule: Schedule, now: int, *, busy: bool) -> FiringPlan:
    """What is to be done at a time; `busy`: the schedule's last run has not ended."""
    timing = schedule.timing
    late, passed = _late(schedule, timing, now)
    chosen = (late + _on_time(schedule, timing, now, BATCH + 1 - len(late)))[: BATCH + 1]
    rest = chosen[BATCH:]
    chosen = chosen[:BATCH]
    line = _Line(schedule, busy=busy)
    for slot in line.without_replaced(chosen):
        line.take(slot)
    following = rest[0] if rest else _following(schedule, timing, now, chosen)
    after = replace(
        schedule,
        next_slot=following,
        waiting=tuple(line.waiting),
        last_slot=line.start[-1] if line.start else schedule.last_slot,
    )
    return FiringPlan(
        start=tuple(line.start),
        passed=tuple(passed + line.passed),
        cancel_for=line.cancel_for,
        schedule=replace(after, due_at=when_due(after, now)),
    )


def when_due(schedule: Schedule, now: int) -> int:
    """When a schedule is to be looked at next."""
    if schedule.paused:
        return FAR
    due = schedule.due(schedule.next_slot)
    if not schedule.waiting:
        return due
    waited = (now - schedule.waiting[0]) // 10
    return min(due, now + min(LONGEST_RECHECK, max(SHORTEST_RECHECK, waited)))


def _lateness(schedule: Schedule, now: int) -> int:
    """Slots before this time are missed."""
    return now - round(schedule.misfire.grace * 1e6) - schedule.jitter


def _late(schedule: Schedule, timing: Timing, now: int) -> tuple[list[int], list[SkippedTimes]]:
    """Those of the missed slots that are made up for, and those that are not."""
    first, end = schedule.next_slot, _lateness(schedule, now)
    if first >= end:
        return [], []
    limit, within = schedule.misfire.limit, schedule.misfire.within
    low = first if within is None else max(first, now - round(within * 1e6))
    if limit is None:
        chosen = list(_some(timing, low, end, BATCH + 1))
    else:
        chosen = latest_fire_times(timing, low, end, limit)[: BATCH + 1]
    if chosen and chosen[0] == first:
        return chosen, []
    last = latest_fire_times(timing, first, chosen[0] if chosen else end, 1)
    return chosen, [SkippedTimes(first, last[0] if last else first, "missed")]


def _on_time(schedule: Schedule, timing: Timing, now: int, count: int) -> list[int]:
    """The slots that are due and not missed, in order."""
    low = max(schedule.next_slot, _lateness(schedule, now))
    # Each waits for the one before it, whatever their jitter.
    return list(takewhile(lambda slot: schedule.due(slot) <= now, _some(timing, low, now + 1, max(0, count))))


def _some(timing: Timing, low: int, end: int, count: int) -> Iterator[int]:
    found = takewhile(lambda slot: slot < end, fire_times(timing, low - 1))
    return (slot for _, slot in zip(range(count), found, strict=False))


def _following(schedule: Schedule, timing: Timing, now: int, chosen: list[int]) -> int:
    """The first slot that was not dealt with."""
    if schedule.next_slot > now:
        return schedule.next_slot
    end = _lateness(schedule, now)
    # What was missed is done with; of what is due, all that was chosen.
    done = max([end - 1, schedule.next_slot - 1, *chosen[-1:]])
    return next_fire_time(timing, done)


class _Line:
    """Slots in the order in which they come, sorted by what the last run allows."""

    def __init__(self, schedule: Schedule, *, busy: bool) -> None:
        self._overlap = schedule.overlap
        self._busy = busy
        self.start: list[int] = []
        self.waiting = list(schedule.waiting)
        self.passed: list[SkippedTimes] = []
        self.cancel_for: int | None = None
        while self.waiting and (not self._busy or self._overlap is Overlap.ALLOW):
            self._begin(self.waiting.pop(0))

    def without_replaced(self, slots: list[int]) -> list[int]:
        """The slots, or the last of them where each would only be cancelled for the next."""
        if self._overlap is not Overlap.CANCEL:
            return slots
        self.passed += [SkippedTimes(slot, slot, "replaced") for slot in slots[:-1]]
        return slots[-1:]

    def take(self, slot: int) -> None:
        if self._overlap is Overlap.ALLOW or not (self._busy or self.waiting):
            self._begin(slot)
        elif self._overlap is Overlap.SKIP:
            self.passed.append(SkippedTimes(slot, slot, "overlap"))
        elif self._overlap is Overlap.QUEUE:
            if len(self.waiting) < LONGEST_QUEUE:
                self.waiting.append(slot)
            else:
                self.passed.append(SkippedTimes(slot, slot, "queue full"))
        else:
            self.passed += [SkippedTimes(replaced, replaced, "replaced") for replaced in self.waiting]
            self.waiting = [slot]
            self.cancel_for = slot

    def _begin(self, slot: int) -> None:
        self.start.append(slot)
        self._busy = True
