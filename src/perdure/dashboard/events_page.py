"""The pages of events: those published for other systems, with their deliveries, and sticky ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from msgspec import Struct
from starlette.responses import Response

from perdure.client.runs.inspect import readable_runs
from perdure.client.session import session_of
from perdure.core.model.cloud_event import DELIVERY_PREFIX, PublishedEvent
from perdure.core.model.run import Run, Status
from perdure.dashboard.actions import Field, OrderForm, order_form, read_json
from perdure.dashboard.page_request import PageRequest
from perdure.dashboard.run_page import brief_json
from perdure.dashboard.texts import count
from perdure.errors import PerdureError
from perdure.http.redaction import FailureView

#: Published events of a page, and sticky events that are shown.
ROWS = 50
STICKY = 100


class PublishedLine(Struct, frozen=True, kw_only=True):
    """A published event, as the caller may see it."""

    id: str
    type: str
    key: str
    #: Of all of its deliveries: failed if one has failed for good.
    state: str
    #: What became of the deliveries: `1 of 2, billing failed`; empty before it was handed on.
    delivered: str
    at: int
    run_id: str


class StickyLine(Struct, frozen=True, kw_only=True):
    """A sticky event, as the caller may see it, and its forms."""

    name: str
    value: str
    at: int
    forms: tuple[OrderForm, ...]


class DeliveryLine(Struct, frozen=True, kw_only=True):
    """A run that delivers an event, as the caller may see it."""

    run: Run
    subscription: str
    error: FailureView | None

    @property
    def can_retry(self) -> bool:
        """True if it has failed for good."""
        return _has_failed(self.run) and not self.run.deleted_at


def _line(request: PageRequest, one: PublishedEvent, runs: Mapping[str, Run]) -> PublishedLine:
    event = one.event
    state, delivered = _delivered(one, [runs[id] for id in one.deliveries if id in runs])
    return PublishedLine(
        id=event.id,
        type=event.type,
        key=_shown_key(request, event.partitionkey),
        state=state,
        delivered=delivered,
        at=0 if event.time is None else round(event.time.timestamp() * 1_000_000),
        run_id=one.run_id,
    )


def _delivered(one: PublishedEvent, runs: Sequence[Run]) -> tuple[str, str]:
    if not one.status.finished:
        return one.status.value, ""
    if one.status is not Status.COMPLETED:
        return one.status.value, "not handed on"
    failed = [_subscription(run) for run in runs if _has_failed(run)]
    done = sum(1 for run in runs if run.status is Status.COMPLETED)
    text = f"{done} of {len(one.deliveries)}" if one.deliveries else "no subscription"
    if failed:
        return "failed", f"{text}, {', '.join(failed[:3])} failed"
    return ("completed" if done == len(runs) else "running"), text


def _subscription(run: Run) -> str:
    return run.type.removeprefix(DELIVERY_PREFIX)


def _has_failed(run: Run) -> bool:
    return run.status in (Status.FAILED, Status.CANCELLED, Status.BLOCKED)


async def _deliveries_of(request: PageRequest, events: Sequence[PublishedEvent]) -> dict[str, Run]:
    """The runs that deliver events, by id."""
    ids = [id for one in events for id in one.deliveries]
    store = await session_of(request.engine).connect()
    return {run.id: run for run in await readable_runs(store, ids)} if ids else {}


def _shown_key(request: PageRequest, key: str | None) -> str:
    return "" if key is None else str(request.shown.members({"event_key": key})["event_key"])


async def events(request: PageRequest) -> Response:
    """Published events, the latest first, and sticky events."""
    given = request.http.query_params
    type, key = given.get("type", "").strip(), given.get("key", "").strip()
    wanted = {name: value for name, value in (("event", type), ("event_key", key)) if value}
    problem = ""
    lines: list[PublishedLine] = []
    more = ""
    try:
        request.shown.check_filter(None, wanted)
        page = await request.engine.outbox.list(
            type=type or None, key=key or None, limit=ROWS, cursor=given.get("cursor") or None
        )
        runs = await _deliveries_of(request, page.events)
        lines = [_line(request, one, runs) for one in page.events]
        if page.cursor is not None:
            older = {"type": type, "key": key, "cursor": page.cursor}
            more = f"{request.url('events')}?{urlencode(older, errors='replace')}"
    except PerdureError as error:
        problem = str(error)
    store = await session_of(request.engine).connect()
    failed = await _failed_deliveries(request)
    return request.render(
        "events.html",
        page="events",
        title="Events",
        sentence=_sentence(lines, failed),
        failed=failed,
        events=lines,
        type=type,
        key=key,
        problem=problem,
        next=more,
        sticky=[_sticky(request, one) for one in await request.engine.events.list(limit=STICKY)],
        now=await store.now(),
        notice=given.get("done", "")[:300],
    )


async def _failed_deliveries(request: PageRequest) -> int:
    page = await request.engine.dead_letters.list(type=f"{DELIVERY_PREFIX}%", limit=100)
    return len(page.letters)


def _sentence(lines: list[PublishedLine], failed: int) -> str:
    if failed:
        verb = "has" if failed == 1 else "have"
        number = "100 deliveries or more" if failed == 100 else count(failed, "delivery", "deliveries")
        whom = "it" if failed == 1 else "them"
        return f"{number} {verb} failed for good; retry or discard {whom} among the dead letters."
    waiting = sum(1 for one in lines if not one.delivered)
    if waiting:
        return (
            f"{count(waiting, 'event')} of this page {'is' if waiting == 1 else 'are'} not handed on: a worker with "
            "subscriptions does that, Engine(..., outbox=[Webhook(...)])."
        )
    return "Every event of this page was handed to its subscriptions." if lines else "No event was published."


def _sticky(request: PageRequest, one: Any) -> StickyLine:
    value = request.shown.members({one.name: one.value})[one.name]
    forms = (order_form(request, "sticky", one.name, "set"), order_form(request, "sticky", one.name, "delete"))
    return StickyLine(name=one.name, value=brief_json(value), at=one.at, forms=forms if request.operates else ())


async def show_event(request: PageRequest, event_id: str) -> Response:
    """One published event and its deliveries."""
    store = await session_of(request.engine).connect()
    found = await request.engine.outbox.get(event_id)
    runs = await request.engine.outbox.deliveries(event_id)
    event = found.event
    deliveries = [
        DeliveryLine(run=run, subscription=_subscription(run), error=request.shown.failure(run.error)) for run in runs
    ]
    return request.render(
        "event.html",
        page="events",
        title=event_id,
        sentence=_event_sentence(found, deliveries),
        event=event,
        key=_shown_key(request, event.partitionkey),
        subject=request.shown.text(event.subject or ""),
        data=request.shown.value(event.data),
        line=_line(request, found, {run.id: run for run in runs}),
        deliveries=deliveries,
        now=await store.now(),
        notice=request.http.query_params.get("done", "")[:300],
    )


def _event_sentence(found: PublishedEvent, deliveries: list[DeliveryLine]) -> str:
    if not found.status.finished:
        return "The event was not handed to its subscriptions yet: a worker of an engine with outbox=[...] does that."
    if not deliveries:
        return "No subscription wanted the event, so it was delivered to none."
    failed = [one.subscription for one in deliveries if one.can_retry]
    if failed:
        return f"The delivery to {', '.join(failed)} has failed for good. Retry sends the same event, with the same id."
    done = sum(1 for one in deliveries if one.run.status is Status.COMPLETED)
    return f"{done} of {count(len(deliveries), 'delivery', 'deliveries')} {'is' if done == 1 else 'are'} done."


async def confirm_replay(request: PageRequest, event_id: str, problem: str = "") -> Response:
    """The page that says what a replay does."""
    found = await request.engine.outbox.get(event_id)
    return request.render(
        "confirm.html",
        status=422 if problem else 200,
        page="events",
        title=f"Deliver {event_id} again",
        sentence="Each subscription that wants the event gets it once more, with the same id; receivers that know the "
        "id ignore it. Events of a key wait for those that are to be delivered before.",
        facts=[f"event {event_id}, {found.event.type}"],
        fields=[Field(name="to", label="Only to this subscription; empty: to all that want it")],
        button="Deliver it again",
        danger=False,
        problem=problem,
        action=request.url("events", event_id, "replay"),
        back=request.url("events", event_id),
    )


async def perform_replay(request: PageRequest, event_id: str, form: Mapping[str, str]) -> Response:
    """Deliver an event again, and lead to the run that does it."""
    try:
        [run_id] = await request.engine.outbox.replay(event_id, to=form.get("to", "").strip() or None)
    except PerdureError as error:
        return await confirm_replay(request, event_id, problem=str(error))
    return request.redirect(request.url("runs", run_id))


async def emit(request: PageRequest, form: Mapping[str, str]) -> Response:
    """Emit a sticky event of any name."""
    name = form.get("name", "").strip()
    done = await request.engine.events.emit(name, read_json(form, "value"))
    text = f"The event {name} has this value." if done else f"The event {name} was emitted before; its value stays."
    return request.redirect(f"{request.url('events')}?{urlencode({'done': text}, errors='replace')}")
