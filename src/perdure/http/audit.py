"""Handlers for the audit trail."""

from __future__ import annotations

from msgspec import Struct

from perdure.client.audit import EventOptions, make_event_filter
from perdure.client.session import session_of
from perdure.http.api import ApiRequest, DurationText, EventStream, Instant, Limit, Position, last_event_id
from perdure.http.views import Page, Payload, Time, views_of


class EventView(Struct, frozen=True, kw_only=True):
    """An event of the audit trail."""

    id: int
    run_id: str
    at: Time
    kind: str
    actor: str
    data: Payload


class EventsQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Filter of events, newest first."""

    run: str | None = None
    kind: tuple[str, ...] = ()
    type: str | None = None
    actor: str | None = None
    since: Instant | None = None
    until: Instant | None = None
    limit: Limit = 100
    cursor: Position | None = None
    #: Events after this number instead, oldest first.
    after: Position | None = None


async def list_events(api: ApiRequest, query: EventsQuery) -> Page[EventView]:
    """List events of the audit trail, newest first, or oldest first after a number."""
    options: EventOptions = {
        "run": query.run,
        "kind": query.kind or None,
        "type": query.type,
        "actor": query.actor,
        "since": query.since,
        "until": query.until,
    }
    if query.after is not None:
        store = await session_of(api.engine).connect()
        found = await store.events_page(make_event_filter(options), query.limit, after=query.after)
        return Page(views_of(EventView, found, api.shown))
    page = await api.engine.audit.list(limit=query.limit, cursor=query.cursor, **options)
    cursor = None if page.cursor is None else str(page.cursor)
    return Page(views_of(EventView, page.events, api.shown), cursor)


class PruneEventsBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Age of the events that are deleted."""

    older_than: DurationText


class DeletedView(Struct, frozen=True):
    """Number of events that were deleted."""

    deleted: int


async def prune_events(api: ApiRequest, body: PruneEventsBody) -> DeletedView:
    """Delete events older than that. Runs are left as they are."""
    return DeletedView(await api.engine.audit.prune(body.older_than))


class LiveQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Number of the event after which to begin. The header `Last-Event-ID` goes before it."""

    after: Position | None = None
    #: Events of this run only.
    run: str | None = None


async def live(api: ApiRequest, query: LiveQuery) -> EventStream:
    """Follow the audit trail as server-sent events, and changes that leave no event."""
    after = last_event_id(api, query.after)
    return EventStream(await api.services.hub.follow(api.shown, after, query.run))
