"""The page that changes a schedule: timing, policies and settings of its runs."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlencode

from starlette.responses import Response

from perdure.core.time.cron import At, Cron, Every, Timing, Window, zone_of
from perdure.core.time.duration import microseconds
from perdure.core.time.schedule import Overlap, Schedule
from perdure.dashboard.actions import Field
from perdure.dashboard.page_request import PageRequest
from perdure.errors import InvalidSchedule, PerdureError, UsageError

#: Units of a duration as a person writes it, in microseconds.
_UNITS = (("w", 604_800_000_000), ("d", 86_400_000_000), ("h", 3_600_000_000), ("m", 60_000_000), ("s", 1_000_000))


async def show_change(
    request: PageRequest, schedule_id: str, problem: str = "", form: Mapping[str, str] | None = None
) -> Response:
    """The page with the form of a schedule, filled in with its present values or with those that were refused."""
    schedule = await request.engine.schedules.get(schedule_id)
    present = _present(schedule)
    given = present if form is None else {**present, **form}
    # The values that the form began with: only what a person has changed is changed.
    before = present if form is None else {name: form.get(f"before-{name}", value) for name, value in present.items()}
    return request.render(
        "confirm.html",
        status=422 if problem else 200,
        page="schedules",
        title=f"Change the schedule {schedule_id}",
        sentence="Runs that it has started are not affected. With another timing, it goes on with the first fire time "
        "from now.",
        facts=[],
        fields=[
            *_fields(given),
            *(Field(name=f"before-{name}", kind="hidden", value=value) for name, value in before.items()),
        ],
        button="Change the schedule",
        danger=False,
        problem=problem,
        action=request.url("schedules", schedule_id, "change"),
        back=request.url("schedules"),
    )


async def change_schedule(request: PageRequest, schedule_id: str, form: Mapping[str, str]) -> Response:
    """Change what differs from the values that the form began with, and lead back to the schedules."""
    changed = {name for name in _READ if form.get(name, "") != form.get(f"before-{name}", "")}
    try:
        changes: dict[str, Any] = {name: _READ[name](form.get(name, "").strip()) for name in changed}
        if changed & {"timing", "zone"}:
            changes["timing"] = _timing(form.get("timing", ""), form.get("zone", ""))
        changes.pop("zone", None)
        if changes:
            await request.engine.schedules.change(schedule_id, **changes)
    except PerdureError as error:
        return await show_change(request, schedule_id, problem=str(error), form=form)
    done = f"The schedule {schedule_id} {'has changed' if changes else 'is as it was'}."
    return request.redirect(f"{request.url('schedules')}?{urlencode({'done': done}, errors='replace')}")


def _fields(given: Mapping[str, str]) -> list[Field]:
    timing = "When: a cron expression such as 0 3 * * *, or every 15m, or at 2026-12-24T18:00+01:00"
    overlap = tuple(one.value for one in Overlap)
    return [
        Field(name="timing", label=timing, value=given["timing"], required=True),
        Field(name="zone", label="Zone of the cron expression", value=given["zone"]),
        Field(
            name="overlap",
            label="At a fire time while the last run goes on",
            kind="choice",
            value=given["overlap"],
            choices=overlap,
        ),
        Field(name="starts", label="It fires from this time on; empty: at once", value=given["starts"]),
        Field(name="ends", label="It fires before this time; empty: for ever", value=given["ends"]),
        Field(
            name="skip", label="Dates on which it does not fire, such as 2026-12-24, 2026-12-25", value=given["skip"]
        ),
        Field(name="jitter", label="Largest random delay, such as 5m", value=given["jitter"]),
        Field(name="queue", label="Queue of its runs", value=given["queue"], required=True),
        Field(name="priority", label="Priority of its runs; lower numbers go first", value=given["priority"]),
        Field(name="deadline", label="Longest duration of a run, such as 2h; empty: none", value=given["deadline"]),
    ]


def _present(schedule: Schedule) -> dict[str, str]:
    timing, zone = "", "UTC"
    bounds = {"starts": "", "ends": "", "skip": ""}
    try:
        bounds = _bounds(schedule.window)
        match schedule.timing:
            case Cron(expression, name):
                timing, zone = expression, name
            case Every(interval, _):
                timing = f"every {exact_duration(microseconds(interval))}"
            case At(moment):
                timing = f"at {moment.isoformat()}"
    except InvalidSchedule:
        # A timing that cannot be read is the very thing to change.
        pass
    return {
        "timing": timing,
        "zone": zone,
        **bounds,
        "overlap": schedule.overlap.value,
        "jitter": exact_duration(schedule.jitter),
        "queue": schedule.queue,
        "priority": str(schedule.priority),
        "deadline": exact_duration(schedule.deadline) if schedule.deadline else "",
    }


def _bounds(window: Window) -> dict[str, str]:
    zone = zone_of(window.timing)
    return {
        "starts": "" if window.starts is None else window.starts.astimezone(zone).isoformat(),
        "ends": "" if window.ends is None else window.ends.astimezone(zone).isoformat(),
        "skip": ", ".join(day.isoformat() for day in window.skip),
    }


def exact_duration(length: int) -> str:
    """Microseconds as the shortest text that means exactly that: `15m`, `90s`, `0.25s`."""
    for unit, size in _UNITS:
        if length and length % size == 0:
            return f"{length // size}{unit}"
    return f"{length / 1e6:.6f}".rstrip("0").rstrip(".") + "s"


def _timing(text: str, zone: str) -> Timing:
    text = text.strip()
    kind, _, rest = text.partition(" ")
    if kind == "every":
        return Every(rest.strip())
    if kind != "at":
        return Cron(text, zone.strip() or "UTC")
    try:
        return At(datetime.datetime.fromisoformat(rest.strip()))
    except ValueError:
        raise UsageError(f"at takes a time such as 2026-12-24T18:00+01:00, not {rest[:40]!r}") from None


def _moment(text: str) -> datetime.datetime | None:
    """A time, in the zone of the schedule if it names none; None for an empty text."""
    try:
        return datetime.datetime.fromisoformat(text) if text else None
    except ValueError:
        raise UsageError(f"write a time such as 2026-12-24T18:00, not {text[:40]!r}") from None


def _priority(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"a priority is a whole number, not {text[:40]!r}") from None


#: Fields of the form, and how each is read.
_READ: Mapping[str, Callable[[str], Any]] = {
    "timing": str,
    "zone": str,
    "starts": _moment,
    "ends": _moment,
    "skip": lambda text: [one.strip() for one in text.split(",")] if text else [],
    "overlap": str,
    "jitter": lambda text: text or 0,
    "queue": str,
    "priority": _priority,
    "deadline": lambda text: text or None,
}
