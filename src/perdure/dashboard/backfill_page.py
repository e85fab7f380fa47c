"""The page that previews a backfill of a schedule, and starts it."""

from __future__ import annotations

import datetime
from collections.abc import Mapping

from starlette.responses import Response

from perdure.client.session import session_of
from perdure.core.time.cron import zone_of
from perdure.core.time.duration import moment_of
from perdure.core.time.schedule import BackfillPreview
from perdure.dashboard.actions import MANY
from perdure.dashboard.page_request import PageRequest
from perdure.dashboard.texts import count
from perdure.errors import PerdureError, UsageError


def _moment(text: str, name: str) -> datetime.datetime:
    """Parse a time; without a zone it is in that of the schedule."""
    try:
        return datetime.datetime.fromisoformat(text.strip())
    except ValueError:
        raise UsageError(f"{name} is a time such as 2026-11-01T00:00, not {text[:40]!r}") from None


async def _end(request: PageRequest, text: str) -> datetime.datetime:
    if text.strip():
        return _moment(text, "to")
    store = await session_of(request.engine).connect()
    return moment_of(await store.now()).replace(microsecond=0)


async def confirm_backfill(request: PageRequest, schedule_id: str, problem: str = "") -> Response:
    """The page of a backfill; with a range in the URL, it says what would start."""
    schedule = await request.engine.schedules.get(schedule_id)
    given = request.http.query_params
    start, end = given.get("start", ""), given.get("end", "")
    preview: BackfillPreview | None = None
    if start and not problem:
        try:
            until = await _end(request, end)
            end = end.strip() or until.isoformat()
            preview = await request.engine.schedules.preview_backfill(schedule_id, _moment(start, "from"), until)
        except PerdureError as error:
            problem = str(error)
    zone = zone_of(schedule.timing)
    return request.render(
        "backfill.html",
        status=422 if problem else 200,
        page="schedules",
        title=f"Backfill {schedule_id}",
        sentence=_sentence(preview),
        schedule=schedule,
        zone=str(zone),
        start=start,
        end=end,
        problem=problem,
        preview=preview,
        times=[f"{one.astimezone(zone):%a %Y-%m-%d %H:%M:%S %Z}" for one in preview.first] if preview else [],
        more=f"{preview.missing - len(preview.first):,}" if preview and preview.missing > len(preview.first) else "",
        number_needed=preview is not None and preview.missing > MANY,
        action=request.url("schedules", schedule_id, "backfill"),
        back=request.url("schedules"),
    )


def _sentence(preview: BackfillPreview | None) -> str:
    if preview is None:
        return (
            "A backfill starts the runs of past fire times that have none. All start at once, regardless of overlap; "
            "a limit of their type bounds how many run at a time."
        )
    if not preview.fire_times:
        return "No fire time is in this range, so nothing would start."
    if not preview.missing:
        return f"{count(preview.fire_times, 'fire time')} in this range, and each has its run: nothing would start."
    return f"{count(preview.fire_times, 'fire time')} in this range, {preview.missing:,} without a run."


async def perform_backfill(request: PageRequest, schedule_id: str, form: Mapping[str, str]) -> Response:
    """Start the runs, and lead to them."""
    try:
        start, end = _moment(form.get("start", ""), "from"), await _end(request, form.get("end", ""))
        found = await request.engine.schedules.preview_backfill(schedule_id, start, end)
        if found.missing > MANY and form.get("number", "").strip().replace(",", "") != str(found.missing):
            raise UsageError(f"type {found.missing}, the number of runs, to confirm")
        await request.engine.schedules.backfill(schedule_id, start, end, form.get("reason", ""))
    except PerdureError as error:
        return await confirm_backfill(request, schedule_id, problem=str(error))
    return request.redirect(request.runs_url(f"schedule:{schedule_id}"))
