"""Handlers for schedules."""

from __future__ import annotations

import datetime
from typing import Annotated, Any

from msgspec import UNSET, Meta, MsgspecError, Struct, UnsetType, structs

from perdure.client.schedules import ScheduleOptions
from perdure.client.session import session_of
from perdure.core.audit import EventFilter
from perdure.core.ids import check_name
from perdure.core.model.attributes import AttributeValue, attributes_from_json
from perdure.core.model.run import Status
from perdure.core.time.cron import At, Cron, Every, Timing, Window
from perdure.core.time.duration import microseconds
from perdure.core.time.schedule import Misfire, Overlap, Schedule, trail_of
from perdure.errors import InvalidSchedule
from perdure.http.api import (
    ApiRequest,
    Arguments,
    DurationText,
    Instant,
    Limit,
    Reason,
    ReasonBody,
    ReasonQuery,
    Reply,
    call_of,
)
from perdure.http.audit import EventView
from perdure.http.redaction import Redactor
from perdure.http.runs.inspect import RunView
from perdure.http.runs.start import SettingsBody, attributes_of, with_settings
from perdure.http.views import (
    AttributeJson,
    Done,
    NamedQuery,
    NumberedQuery,
    Page,
    Payload,
    ShownText,
    Time,
    attributes_view,
    named,
    numbered,
    view_of,
    views_of,
)


class TimingView(Struct, frozen=True, kw_only=True):
    """Timing of a schedule: `cron` with its `zone`, `every` (seconds) from `start` on, or `at`."""

    cron: str | None = None
    zone: str | None = None
    every: float | None = None
    start: Time = None
    at: Time = None

    @classmethod
    def of(cls, schedule: Schedule) -> TimingView | None:
        """Convert the timing of a schedule; None if this machine cannot read it."""
        try:
            timing = schedule.timing
        except InvalidSchedule:
            return None
        match timing:
            case Cron(expression, zone):
                return cls(cron=expression, zone=zone)
            case Every(interval, start):
                return cls(every=microseconds(interval) / 1e6, start=start)
            case At(moment):
                return cls(at=moment)


def _window(schedule: Schedule) -> Window | None:
    try:
        return schedule.window
    except InvalidSchedule:
        return None


def _stored_attributes(text: str) -> dict[str, AttributeValue]:
    """Decode attributes; none if they cannot be read, which the schedule's error says."""
    try:
        return {one.name: one.value for one in attributes_from_json(text)}
    except (ValueError, MsgspecError):
        return {}


class ScheduleView(Struct, frozen=True, kw_only=True):
    """A schedule."""

    id: str
    #: Null if it cannot be read; `error` says why.
    timing: TimingView | None
    #: It fires from `starts` on, before `ends`, and not on the dates in `skip`.
    starts: Time
    ends: Time
    skip: tuple[datetime.date, ...]
    type: str
    input: Payload
    queue: str
    priority: int
    deadline_seconds: float | None
    jitter_seconds: float
    misfire: Misfire
    overlap: Overlap
    paused: bool
    reason: ShownText
    next_fire_time: Time
    due_at: Time
    waiting: tuple[Time, ...]
    last_fire_time: Time
    last_run: str | None
    error: str | None
    attributes: dict[str, Any]
    headers: dict[str, str]
    created_at: Time
    changed_at: Time

    @classmethod
    def of(cls, one: Schedule, shown: Redactor) -> ScheduleView:
        """Convert a schedule."""
        window = _window(one)
        return view_of(
            cls,
            one,
            shown,
            timing=TimingView.of(one),
            starts=None if window is None else window.starts,
            ends=None if window is None else window.ends,
            skip=() if window is None else window.skip,
            deadline_seconds=one.deadline / 1e6 if one.deadline else None,
            jitter_seconds=one.jitter / 1e6,
            last_run=one.last_run or None,
            error=shown.text(one.error) or None,
            attributes=attributes_view(_stored_attributes(one.attributes), shown),
            headers=shown.members(one.headers),
        )


class TimingBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Timing: `cron` with its `zone`, `every` from `start` on, or `at`."""

    cron: str | None = None
    zone: str = "UTC"
    every: DurationText | None = None
    start: Instant | None = None
    at: Instant | None = None


class MisfireBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fire times that were missed and are made up for: `skip`, `once`, `all`, or a number."""

    policy: str | int | UnsetType = UNSET
    grace: DurationText | UnsetType = UNSET
    within: DurationText | UnsetType | None = UNSET


class ScheduleBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A schedule. An existing one that is the same stays as it is; with `replace`, another one is changed."""

    type: str
    input: Arguments = {}
    timing: TimingBody
    replace: bool = False
    starts: datetime.datetime | UnsetType | None = UNSET
    ends: datetime.datetime | UnsetType | None = UNSET
    skip: tuple[datetime.date, ...] | UnsetType = UNSET
    jitter: DurationText | UnsetType = UNSET
    misfire: MisfireBody | UnsetType = UNSET
    overlap: Overlap | UnsetType = UNSET
    queue: str | UnsetType = UNSET
    priority: int | UnsetType = UNSET
    deadline: DurationText | UnsetType | None = UNSET
    attributes: dict[str, AttributeJson] | UnsetType | None = UNSET
    headers: dict[str, str] | UnsetType | None = UNSET
    settings: SettingsBody | UnsetType | None = UNSET


class ScheduleChanges(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Changes to a schedule; what is left out stays as it is. Another `type` or `input` needs both."""

    type: str | UnsetType = UNSET
    input: Arguments | UnsetType = UNSET
    timing: TimingBody | UnsetType = UNSET
    starts: datetime.datetime | UnsetType | None = UNSET
    ends: datetime.datetime | UnsetType | None = UNSET
    skip: tuple[datetime.date, ...] | UnsetType = UNSET
    jitter: DurationText | UnsetType = UNSET
    misfire: MisfireBody | UnsetType = UNSET
    overlap: Overlap | UnsetType = UNSET
    queue: str | UnsetType = UNSET
    priority: int | UnsetType = UNSET
    deadline: DurationText | UnsetType | None = UNSET
    attributes: dict[str, AttributeJson] | UnsetType | None = UNSET
    headers: dict[str, str] | UnsetType | None = UNSET
    settings: SettingsBody | UnsetType | None = UNSET


def _timing(body: TimingBody) -> Timing:
    given = [name for name in ("cron", "every", "at") if getattr(body, name) is not None]
    if len(given) != 1:
        raise InvalidSchedule("a timing has one of cron, every and at")
    if body.cron is not None:
        return Cron(body.cron, body.zone)
    if body.every is not None:
        return Every(body.every, body.start)
    assert body.at is not None
    return At(body.at)


def _options(body: ScheduleBody | ScheduleChanges) -> ScheduleOptions:
    options: Any = {
        name: getattr(body, name)
        for name in ("starts", "ends", "skip", "jitter", "overlap", "queue", "priority", "deadline", "headers")
        if getattr(body, name) is not UNSET
    }
    if not isinstance(body.misfire, UnsetType):
        given = {"misfire": body.misfire.policy, "grace": body.misfire.grace, "within": body.misfire.within}
        options |= {name: value for name, value in given.items() if value is not UNSET}
    if not isinstance(body.attributes, UnsetType):
        options["attributes"] = attributes_of(body.attributes)
    found: ScheduleOptions = options
    return found


async def create_schedule(api: ApiRequest, schedule_id: str, body: ScheduleBody) -> ScheduleView:
    """Create a schedule, or change it with `replace`."""
    call = with_settings(call_of(api.engine, body.type, body.input), body.settings)
    made = await api.engine.schedules.create(
        schedule_id, call, _timing(body.timing), replace=body.replace, **_options(body)
    )
    return ScheduleView.of(made, api.shown)


async def change_schedule(api: ApiRequest, schedule_id: str, body: ScheduleChanges) -> ScheduleView:
    """Change some properties of a schedule; runs that it has started are not affected."""
    call = None
    if isinstance(body.type, str) or not isinstance(body.input, UnsetType):
        there = await api.engine.schedules.get(schedule_id)
        arguments: Arguments = {} if isinstance(body.input, UnsetType) else body.input
        call = call_of(api.engine, body.type if isinstance(body.type, str) else there.type, arguments)
        call = with_settings(call, body.settings)
    timing = None if isinstance(body.timing, UnsetType) else _timing(body.timing)
    changed = await api.engine.schedules.change(schedule_id, call=call, timing=timing, **_options(body))
    return ScheduleView.of(changed, api.shown)


async def list_schedules(api: ApiRequest, query: NamedQuery) -> Page[ScheduleView]:
    """List schedules by id."""
    found = await api.engine.schedules.list(limit=query.limit, after=query.cursor)
    return named(views_of(ScheduleView, found, api.shown), "id", query)


async def show_schedule(api: ApiRequest, schedule_id: str) -> ScheduleView:
    """Read a schedule."""
    return ScheduleView.of(await api.engine.schedules.get(schedule_id), api.shown)


async def delete_schedule(api: ApiRequest, schedule_id: str, query: ReasonQuery) -> Done:
    """Delete a schedule; runs that it has started go on."""
    await api.engine.schedules.delete(schedule_id, query.reason)
    return Done(True)


async def pause_schedule(api: ApiRequest, schedule_id: str, body: ReasonBody) -> Done:
    """Start no more runs of a schedule."""
    return Done(await api.engine.schedules.pause(schedule_id, body.reason))


class ResumeBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Choice whether fire times during the pause count as missed."""

    catch_up: bool = False
    reason: Reason = ""


async def resume_schedule(api: ApiRequest, schedule_id: str, body: ResumeBody) -> Done:
    """Start runs of a schedule again."""
    return Done(await api.engine.schedules.resume(schedule_id, catch_up=body.catch_up, reason=body.reason))


async def trigger_schedule(api: ApiRequest, schedule_id: str, body: ReasonBody) -> Reply[RunView]:
    """Start a run of a schedule now, regardless of timing, pause and overlap."""
    handle = await api.engine.schedules.trigger(schedule_id, body.reason)
    return Reply(RunView.of(await handle.info(), api.shown), 201)


class BackfillBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Range of fire times, the first inclusive, which is not in the future."""

    start: Instant
    end: Instant


class BackfillOrder(BackfillBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Range of fire times, and the reason of the backfill."""

    reason: Reason = ""


class BackfilledView(Struct, frozen=True):
    """Ids of the runs that were started."""

    ids: tuple[str, ...]


async def backfill_schedule(api: ApiRequest, schedule_id: str, body: BackfillOrder) -> Reply[BackfilledView]:
    """Start the runs of all fire times of a range. An interrupted backfill may be repeated."""
    started = await api.engine.schedules.backfill(schedule_id, body.start, body.end, body.reason)
    return Reply(BackfilledView(tuple(started)), 201)


class BackfillPreviewView(Struct, frozen=True, kw_only=True):
    """Number of fire times in the range, number and first ten of those that have no run yet."""

    fire_times: int
    missing: int
    first: tuple[datetime.datetime, ...]


async def preview_backfill(api: ApiRequest, schedule_id: str, body: BackfillBody) -> BackfillPreviewView:
    """Count the fire times that a backfill would start runs for. Nothing is written."""
    found = await api.engine.schedules.preview_backfill(schedule_id, body.start, body.end)
    return view_of(BackfillPreviewView, found, api.shown)


class FiresQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Number of fire times."""

    limit: Limit = 30


class FireView(Struct, frozen=True, kw_only=True):
    """A fire time in the past: its run, or why it was skipped."""

    at: Time
    #: First fire time of a range that was skipped; null for one fire time.
    since: Time
    #: Empty if it was skipped.
    run_id: str
    status: Status | None
    finished_at: Time
    #: Reason why it was skipped; empty if it has a run.
    skipped: str


async def list_fires(api: ApiRequest, schedule_id: str, query: FiresQuery) -> Page[FireView]:
    """List the latest fire times of a schedule, latest first, with the status of their runs."""
    return Page(views_of(FireView, await api.engine.schedules.fires(schedule_id, query.limit), api.shown))


class ScheduleRunsQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Number of runs."""

    limit: Limit = 100


class ScheduledRunView(Struct, frozen=True, kw_only=True):
    """A run of a schedule; its times are in the zone of the schedule."""

    run_id: str
    status: Status
    #: Null if it was started by hand.
    fire_time: datetime.datetime | None
    created_at: datetime.datetime
    started_at: datetime.datetime | None
    finished_at: datetime.datetime | None


async def list_schedule_runs(api: ApiRequest, schedule_id: str, query: ScheduleRunsQuery) -> Page[ScheduledRunView]:
    """List the latest runs of a schedule, newest first, with times in its zone."""
    found = await api.engine.schedules.runs(schedule_id, query.limit)
    return Page(tuple(ScheduledRunView(**structs.asdict(one)) for one in found))


class NextQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Number of fire times."""

    count: Annotated[int, Meta(ge=1, le=1000)] = 5


class FireTimesView(Struct, frozen=True):
    """Fire times, in the zone of the schedule."""

    times: tuple[datetime.datetime, ...]


async def next_fire_times(api: ApiRequest, schedule_id: str, query: NextQuery) -> FireTimesView:
    """Compute the next fire times of a schedule, as if it were not paused."""
    return FireTimesView(tuple(await api.engine.schedules.next(schedule_id, query.count)))


async def schedule_events(api: ApiRequest, schedule_id: str, query: NumberedQuery) -> Page[EventView]:
    """Read the audit trail of a schedule, in order."""
    trail = EventFilter(run_id=trail_of(check_name(schedule_id, "schedule id")))
    store = await session_of(api.engine).connect()
    found = await store.events_page(trail, query.limit + 1, after=query.cursor or 0)
    return numbered(views_of(EventView, found, api.shown), "id", query)
