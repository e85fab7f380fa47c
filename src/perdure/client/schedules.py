"""Schedules: runs that are started by the clock, with policies for fire times that were missed or overlap.

Everything is checked before anything is written. A change is compared and swapped: if the schedule was changed or fired
in the meantime, it is read and changed again.
"""

from __future__ import annotations

import builtins
import datetime
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from itertools import islice, takewhile
from typing import Any, TypedDict, Unpack

from msgspec import structs

from perdure.client.handle import Handle, get_handle
from perdure.client.runs.namespace import Runs
from perdure.client.runs.start import StartOptions
from perdure.client.session import Session
from perdure.core.audit import Event, EventFilter
from perdure.core.ids import check_name
from perdure.core.model.attributes import AttributeValue, attributes_to_json, make_attributes
from perdure.core.model.headers import NO_HEADERS, check_headers, inherit_headers, with_headers
from perdure.core.model.run import Run
from perdure.core.option_checks import (
    check_datetime,
    check_flag,
    check_list,
    check_page,
    check_text,
    check_time,
    check_whole,
    no_option,
)
from perdure.core.printed_text import brief
from perdure.core.time.cron import At, Cron, Every, Timing, Window, fire_times, next_fire_time, to_stored, zone_of
from perdure.core.time.duration import NEVER, Duration, instant, microseconds, moment_of
from perdure.core.time.firing_plan import when_due
from perdure.core.time.schedule import (
    BackfillPreview,
    Fire,
    Misfire,
    Overlap,
    SaveOutcome,
    Schedule,
    ScheduledRun,
    fire_time_of,
    run_id_of,
    skipped_fire,
    trail_of,
)
from perdure.errors import InvalidSchedule, ScheduleExists, ScheduleNotFound, SingletonBusy, UsageError
from perdure.workflow.definition import Call

#: Fire times that one backfill may have, and how many of them are started in one transaction.
BACKFILL = 10_000
_CHUNK = 100
_LATELY = 1000
#: Runs that a preview reads at once, and fire times that it names.
_PAGE = 500
_SHOWN = 10
#: Dates that a schedule may skip, and the years that they lie in.
MOST_SKIPPED = 4000
_YEARS = range(1970, 9991)
#: A version that no schedule has.
_NO_VERSION = -1


class ScheduleOptions(TypedDict, total=False):
    """Policies of a schedule; those left out stay as they were, or have their defaults."""

    #: It fires from this time on, and before this time; None: at any time. Without a time zone, a time is in that of
    #: the schedule.
    starts: datetime.datetime | None
    ends: datetime.datetime | None
    #: Dates on which it does not fire, in the time zone of the schedule, such as `["2026-12-24"]`; a calendar of the
    #: code is a list of them. An empty list: none.
    skip: Iterable[datetime.date | str]
    #: Each fire time is late by up to this, always by the same for the same fire time.
    jitter: Duration
    #: Fire times that were missed and are made up for: `skip`, `once` (the default), `all`, or a number.
    misfire: Misfire | str | int
    #: Delay after which a fire time counts as missed; a minute by default.
    grace: Duration
    #: Age after which a missed fire time is not made up for.
    within: Duration | None
    #: Treatment of a fire time while the last run goes on: `skip` (the default), `allow`, `queue` or `cancel`.
    overlap: Overlap | str
    queue: str
    priority: int
    #: Time that each run may take; no limit by default.
    deadline: Duration | None
    #: Attributes of its runs; None: none.
    attributes: Mapping[str, AttributeValue] | None
    #: Headers of its runs; None: none.
    headers: Mapping[str, str] | None


class Schedules:
    """Schedules of an engine's database: `engine.schedules`."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def create(
        self, id: str, call: Call[Any], timing: Timing, *, replace: bool = False, **options: Unpack[ScheduleOptions]
    ) -> Schedule:
        """Run a call by the clock: `Cron(...)`, `Every(...)` or `At(...)`.

        An existing schedule that is the same stays as it is.

        Raises `ScheduleExists` if the id belongs to another schedule; with `replace`, that one is changed. Raises
        `InvalidSchedule` and the like before anything is written.
        """
        id = check_name(id, "schedule id")
        now = await self._now()
        wanted = self._with_changes(Schedule(id=id, spec="", type=""), call, timing, options, now)
        if wanted.next_fire_time >= NEVER:
            raise InvalidSchedule(f"the schedule {id!r} would never run: {brief(timing)} is over, or never comes")
        store = await self._session.connect()
        while True:
            write_id = self._session.system.entropy(16).hex()
            saved = await store.save_schedule(wanted, 0, write_id, "schedule_created", self._session.actor)
            there = await store.schedule(id)
            if saved is SaveOutcome.DONE:
                return there or wanted
            # It was deleted after it was in the way, so there is room now.
            if there is None:
                continue
            if self._is_same(there, _anchored_like(wanted, timing, there), call):
                return there
            if not replace:
                raise ScheduleExists(
                    f"there is another schedule {id!r}; change it, choose another id, or say replace=True"
                )
            with suppress(ScheduleNotFound):
                return await self.change(id, call=call, timing=timing, **options)

    def _is_same(self, there: Schedule, wanted: Schedule, call: Call[Any]) -> bool:
        # An input of before defaults were part of it is the same without them.
        if there.type == wanted.type and self._session.duplicates.is_same_input(there.input, wanted.input, call):
            wanted = structs.replace(wanted, input=there.input)
        return _definition(there) == _definition(wanted)

    async def change(
        self,
        id: str,
        *,
        call: Call[Any] | None = None,
        timing: Timing | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> Schedule:
        """Change some properties of a schedule; runs that it has started are not affected. Raises `ScheduleNotFound`.

        With another timing, it goes on with the first fire time from now.
        """
        now = await self._now()
        await self._change(id, "schedule_changed", lambda one: self._with_changes(one, call, timing, options, now))
        return await self.get(id)

    async def pause(self, id: str, reason: str = "") -> bool:
        """Start no more runs; False if it is paused already.

        Fire times during the pause are skipped when it is resumed.
        """
        reason = check_text("reason", reason)
        self._session.codec.encode(reason, "the reason of a pause")

        def paused(one: Schedule) -> Schedule | None:
            return None if one.paused else structs.replace(one, paused=True, reason=reason, due_at=NEVER)

        return await self._change(id, "schedule_paused", paused)

    async def resume(self, id: str, *, catch_up: bool = False, reason: str = "") -> bool:
        """Start runs again; False if it is not paused. With `catch_up`, fire times during the pause count as missed."""
        check_flag("catch_up", catch_up)
        reason = check_text("reason", reason)
        now = await self._now()

        def resumed(one: Schedule) -> Schedule | None:
            if not one.paused:
                return None
            following = one.next_fire_time if catch_up or one.next_fire_time > now else next_fire_time(one.window, now)
            return _due(structs.replace(one, paused=False, reason="", next_fire_time=following), now)

        return await self._change(id, "schedule_resumed", resumed, reason)

    async def delete(self, id: str, reason: str = "") -> None:
        """Delete a schedule; runs that it has started go on. Raises `ScheduleNotFound`."""
        reason = check_text("reason", reason)
        await self.get(id)
        await (await self._session.connect()).delete_schedule(id, self._session.actor, reason)

    async def trigger(self, id: str, reason: str = "") -> Handle[Any]:
        """Start a run now, regardless of timing, pause and overlap. Raises `ScheduleNotFound`, and `SingletonBusy`."""
        reason = check_text("reason", reason)
        key = f"now-{self._session.system.entropy(8).hex()}"
        started = await self._trigger(id, (), key, reason)
        if not started:
            raise SingletonBusy(f"the schedule {id!r} starts a singleton, and another run of that is not over yet")
        return await get_handle(self._session, started[0])

    async def backfill(
        self, id: str, start: datetime.datetime, end: datetime.datetime, reason: str = ""
    ) -> builtins.list[str]:
        """Start the runs of all fire times from `start` on and before `end`, which is not in the future; their ids.

        A `datetime` without a time zone is a wall clock in the schedule's own time zone, which is that of its `Cron`
        and otherwise UTC. Fire times that have run are not run again. All are started at once, regardless of the
        policies: the overlap policy does not hold them back, so give the type a limit if few shall run at a time. An
        interrupted backfill may be repeated. `preview_backfill` says what it would start.
        """
        reason = check_text("reason", reason)
        wanted = await self._backfilled(id, start, end)
        started: builtins.list[str] = []
        for at in range(0, len(wanted), _CHUNK):
            started += await self._trigger(id, wanted[at : at + _CHUNK], "", reason)
        return started

    async def preview_backfill(self, id: str, start: datetime.datetime, end: datetime.datetime) -> BackfillPreview:
        """Count the fire times of a backfill, and those of them that have no run yet. Nothing is written."""
        wanted, store = await self._backfilled(id, start, end), await self._session.connect()
        missing: builtins.list[int] = []
        for at in range(0, len(wanted), _PAGE):
            part = wanted[at : at + _PAGE]
            there = {run.id for run in await store.get_many([run_id_of(id, time) for time in part])}
            missing += [time for time in part if run_id_of(id, time) not in there]
        return BackfillPreview(
            fire_times=len(wanted), missing=len(missing), first=tuple(moment_of(time) for time in missing[:_SHOWN])
        )

    async def fires(self, id: str, limit: int = 30) -> builtins.list[Fire]:
        """Read the latest fire times, latest first: the run of each and its status, or why it was skipped.

        Runs that were started by hand are left out.
        """
        check_page(limit)
        await self.get(id)
        store = await self._session.connect()
        found = [
            Fire(at=instant(moment, 0), run_id=run.id, status=run.status, finished_at=run.finished_at)
            for run in await store.list_fires(id, limit)
            if (moment := fire_time_of(run.id)) is not None
        ]
        passed = EventFilter(run_id=trail_of(id), kinds=("schedule_passed",))
        for event in await store.events_page(passed, limit):
            found += skipped_fire(event.data)
        return sorted(found, key=lambda one: one.at, reverse=True)[:limit]

    async def runs(self, id: str, limit: int = 100) -> builtins.list[ScheduledRun]:
        """List the latest runs of a schedule, newest first, with all times in its time zone.

        Runs that were started by hand are among them. `engine.runs.list(schedule=id)` has more, and pages.
        """
        check_page(limit)
        schedule = await self.get(id)
        page = await Runs(self._session).list(schedule=schedule.id, limit=limit)
        zone = zone_of(schedule.timing)
        return [_scheduled_run(run, zone) for run in page.runs]

    async def _backfilled(self, id: str, start: datetime.datetime, end: datetime.datetime) -> builtins.list[int]:
        start, end = check_datetime("start", start), check_datetime("end", end)
        schedule, now = await self.get(id), await self._now()
        first, last = _wall_instant(start, schedule.timing), _wall_instant(end, schedule.timing)
        if not first <= last <= now:
            raise UsageError(
                f"a backfill goes from an earlier time to a later one, and not beyond now: {start} to {end}"
            )
        found = takewhile(lambda time: time < last, fire_times(schedule.window, first - 1))
        wanted = [*islice(found, BACKFILL + 1)]
        if len(wanted) > BACKFILL:
            raise UsageError(
                f"from {start} to {end} there are more than {BACKFILL} fire times; backfill a part at a time"
            )
        return wanted

    async def get(self, id: str) -> Schedule:
        """Read one schedule. Raises `ScheduleNotFound`."""
        schedule = await (await self._session.connect()).schedule(check_name(id, "schedule id"))
        if schedule is None:
            raise ScheduleNotFound(f"there is no schedule {id!r}")
        return schedule

    async def list(self, *, limit: int = 100, after: str = "") -> builtins.list[Schedule]:
        """List schedules by id, beginning after an id."""
        check_page(limit)
        after = check_text("after", after)
        return await (await self._session.connect()).schedules(after, limit)

    async def next(self, id: str, count: int = 5) -> builtins.list[datetime.datetime]:
        """Return the next fire times, as if it were not paused, in its time zone."""
        schedule, now = await self.get(id), await self._now()
        if check_whole("count", count, 1) > _LATELY:
            raise UsageError(f"count must be between 1 and {_LATELY}, not {brief(count)}")
        after = max(now, schedule.next_fire_time - 1)
        return [] if after >= NEVER - 1 else schedule.window.upcoming(count, after=moment_of(after))

    async def events(self, id: str) -> builtins.list[Event]:
        """Read the audit trail of a schedule: created, fired, skipped and why, changed, deleted."""
        return await (await self._session.connect()).events(trail_of(check_name(id, "schedule id")))

    async def _now(self) -> int:
        return await (await self._session.connect()).now()

    async def _trigger(
        self, id: str, fire_times: builtins.list[int] | tuple[()], key: str, reason: str
    ) -> builtins.list[str]:
        store = await self._session.connect()
        started = await store.trigger(check_name(id, "schedule id"), fire_times, key, self._session.actor, reason)
        if started is None:
            raise ScheduleNotFound(f"there is no schedule {id!r}")
        return started

    async def _change(
        self, id: str, event: str, change: Callable[[Schedule], Schedule | None], reason: str = ""
    ) -> bool:
        """Compare and swap a schedule until it succeeds; False if there is nothing to change."""
        store = await self._session.connect()
        write_id = self._session.system.entropy(16).hex()
        while True:
            there = await self.get(id)
            changed = change(there)
            # Without a change, this asks whether the last write is that of an earlier attempt whose answer was lost.
            wanted, version = (there, _NO_VERSION) if changed is None else (changed, there.version)
            saved = await store.save_schedule(wanted, version, write_id, event, self._session.actor, reason)
            if saved is SaveOutcome.DONE:
                return True
            if changed is None:
                return False

    def _with_call(self, one: Schedule, call: Call[Any], options: ScheduleOptions) -> Schedule:
        """Make a schedule run another call."""
        place: StartOptions = {"queue": options.get("queue"), "priority": options.get("priority")}
        new = self._session.new_run(call, place, "schedules.create")
        # Limits as durations: a run that is ready at 0 has to be begun and finished by these times.
        limits = self._session.resolve_call(call).place(0, None, None, one.deadline or NEVER)
        return structs.replace(
            one,
            type=new.type,
            input=new.input,
            queue=new.queue,
            priority=new.priority,
            deadline=_whenever(limits.close_by or limits.deadline),
            start_within=limits.deadline if limits.close_by else 0,
            max_attempts=new.max_attempts,
            options=new.options,
        )

    def _with_changes(
        self, one: Schedule, call: Call[Any] | None, timing: Timing | None, options: ScheduleOptions, now: int
    ) -> Schedule:
        """Apply a call, a timing and options to a schedule."""
        if unknown := options.keys() - ScheduleOptions.__annotations__.keys():
            raise InvalidSchedule(no_option("a schedule", unknown, ScheduleOptions.__annotations__))
        changed = _with_policies(one, options)
        if call is not None:
            changed = self._with_call(changed, call, options)
        if "headers" in options:
            changed = structs.replace(changed, options=with_headers(changed.options, check_headers(options["headers"])))
        elif call is not None:
            changed = structs.replace(changed, options=inherit_headers(changed.options, one.options, NO_HEADERS))
        if call is None and {"queue", "priority"} & options.keys():
            place: StartOptions = {
                "queue": options.get("queue", one.queue),
                "priority": options.get("priority", one.priority),
            }
            new = self._session.run_maker(place).make(Call(one.type, ()), "")
            changed = structs.replace(changed, queue=new.queue, priority=new.priority)
        return _due(_with_window(changed, timing, options, now), now)


def _with_window(one: Schedule, timing: Timing | None, options: ScheduleOptions, now: int) -> Schedule:
    """Apply a timing, its bounds and the skipped dates to a schedule."""
    if timing is None and not {"starts", "ends", "skip"} & options.keys():
        return one
    # A new schedule has no window yet, and a timing that cannot be read may be replaced.
    before = Window(_checked(timing)) if timing is not None and not one.spec else None
    try:
        before = before or one.window
    except InvalidSchedule:
        if timing is None:
            raise
        before = Window(_checked(timing))
    plain = before.timing if timing is None else _checked(timing)
    window = Window(
        plain,
        _bound("starts", options.get("starts", before.starts), plain),
        _bound("ends", options.get("ends", before.ends), plain),
        skipped_dates(options["skip"]) if "skip" in options else before.skip,
    )
    if window.starts is not None and window.ends is not None and window.starts >= window.ends:
        raise InvalidSchedule(f"the schedule ends at {window.ends}, before it starts at {window.starts}")
    if timing is None:
        # Fire times that were missed stay so; a date that is no longer skipped counts from now on.
        return _with_spec(one, window, min(now, one.next_fire_time - 1))
    return _with_spec(one, structs.replace(window, timing=_anchored(plain, window.starts, now)), now)


def _with_spec(one: Schedule, window: Window, after: int) -> Schedule:
    return structs.replace(one, spec=to_stored(window), next_fire_time=next_fire_time(window, after), error="")


def _bound(name: str, moment: object, timing: Timing) -> datetime.datetime | None:
    return None if moment is None else moment_of(_wall_instant(check_datetime(name, moment), timing))


def skipped_dates(dates: object) -> tuple[datetime.date, ...]:
    """Check the dates that a schedule skips, and put them in order."""
    found = {_date(one) for one in check_list("skip", dates, "['2026-12-24', '2026-12-25']")}
    if len(found) > MOST_SKIPPED:
        raise InvalidSchedule(f"skip has {len(found)} dates; give at most {MOST_SKIPPED}")
    return tuple(sorted(found))


def _date(one: object) -> datetime.date:
    try:
        day = datetime.date.fromisoformat(one) if isinstance(one, str) else one
    except ValueError:
        day = None
    if isinstance(day, datetime.date) and not isinstance(day, datetime.datetime) and day.year in _YEARS:
        return day
    raise InvalidSchedule(f"skip has {brief(one)}, which is not a date; write one such as '2026-12-24'")


def _scheduled_run(run: Run, zone: datetime.tzinfo) -> ScheduledRun:
    fired = fire_time_of(run.id)
    return ScheduledRun(
        run_id=run.id,
        status=run.status,
        fire_time=None if fired is None else fired.astimezone(zone),
        created_at=moment_of(run.created_at).astimezone(zone),
        started_at=moment_of(run.started_at).astimezone(zone) if run.started_at else None,
        finished_at=moment_of(run.finished_at).astimezone(zone) if run.finished_at else None,
    )


def _wall_instant(when: datetime.datetime, timing: Timing) -> int:
    """A moment in microseconds; a wall clock without a time zone is that of the timing."""
    if when.tzinfo is None:
        when = when.replace(tzinfo=zone_of(timing))
    return instant(when, 0)


def _whenever(time: int) -> int:
    return 0 if time >= NEVER else time


def _with_policies(one: Schedule, options: ScheduleOptions) -> Schedule:
    misfire = one.misfire
    if {"misfire", "grace", "within"} & options.keys():
        limit = "all" if misfire.limit is None else misfire.limit
        misfire = Misfire.of(
            options.get("misfire", limit),
            grace=options.get("grace", misfire.grace),
            within=options.get("within", misfire.within),
        )
    overlap = options.get("overlap", one.overlap)
    if not isinstance(overlap, str) or overlap not in tuple(Overlap):
        raise InvalidSchedule(f"overlap={brief(overlap)} is no policy; say one of {', '.join(Overlap)}")
    deadline = options.get("deadline", one.deadline / 1e6 or None)
    return structs.replace(
        one,
        jitter=microseconds(options.get("jitter", one.jitter / 1e6)),
        misfire=misfire,
        overlap=Overlap(overlap),
        deadline=0 if deadline is None else microseconds(check_time("deadline", deadline) or 0),
        attributes=attributes_to_json(make_attributes(options["attributes"]))
        if "attributes" in options
        else one.attributes,
    )


def _checked(timing: object) -> Timing:
    if not isinstance(timing, Cron | Every | At):
        raise InvalidSchedule(f"{brief(timing)} does not say when; give Cron('0 3 * * *'), Every('1h') or At(moment)")
    return timing


def _anchored(timing: Timing, starts: datetime.datetime | None, now: int) -> Timing:
    """Give an interval without a beginning one: that of the schedule, or one interval from now."""
    if isinstance(timing, Every) and timing.start is None:
        return Every(timing.interval, start=starts or moment_of(now + microseconds(timing.interval)))
    return timing


def _due(schedule: Schedule, now: int) -> Schedule:
    return structs.replace(schedule, due_at=when_due(schedule, now))


def _anchored_like(wanted: Schedule, timing: Timing, there: Schedule) -> Schedule:
    """Take the beginning of an interval without one from the existing schedule."""
    if isinstance(timing, Every) and timing.start is None:
        known, window = there.timing, wanted.window
        if isinstance(known, Every) and known.interval == timing.interval and window.starts is None:
            return structs.replace(wanted, spec=to_stored(structs.replace(window, timing=known)))
    return wanted


def _definition(one: Schedule) -> tuple[object, ...]:
    """Return the properties by which two schedules are the same."""
    return (
        (one.spec, one.type, one.input, one.queue, one.priority, one.jitter, one.misfire, one.overlap),
        (one.deadline, one.start_within, one.max_attempts, one.options, one.attributes),
    )
