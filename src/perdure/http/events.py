"""Handlers for sticky events."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from msgspec import Struct

from perdure.core.model.events import StickyEvent
from perdure.http.api import ApiRequest, Limit, ReasonQuery, Reply, WaitSeconds
from perdure.http.redaction import Redactor
from perdure.http.views import Page, Time, time_of


class StickyEventView(Struct, frozen=True, kw_only=True):
    """A sticky event; `emitted` is false while it has no value."""

    name: str
    emitted: bool
    value: Any = None
    at: Time = None


def _view(event: StickyEvent, shown: Redactor) -> StickyEventView:
    value = shown.members({event.name: event.value})[event.name]
    return StickyEventView(name=event.name, emitted=True, value=value, at=time_of(event.at))


class StickyEventsQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sticky events whose names begin with `prefix`, the latest first."""

    prefix: str = ""
    limit: Limit = 100


async def list_sticky_events(api: ApiRequest, query: StickyEventsQuery) -> Page[StickyEventView]:
    """List sticky events that were emitted, the latest first."""
    found = await api.engine.events.list(prefix=query.prefix, limit=query.limit)
    return Page(tuple(_view(event, api.shown) for event in found))


class StickyEventQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Time to wait for the event."""

    wait: WaitSeconds = 0


async def sticky_event(api: ApiRequest, name: str, query: StickyEventQuery) -> Reply[StickyEventView]:
    """Read a sticky event, waiting for it for `wait` seconds. Status 202 if it was not emitted."""
    events = api.engine.events
    found = await events.get(name)
    if found is None and query.wait:
        with suppress(TimeoutError):
            await events.wait(name, timeout=api.wait(query.wait))
        found = await events.get(name)
    if found is None:
        return Reply(StickyEventView(name=name, emitted=False), 202)
    return Reply(_view(found, api.shown))


class StickyEventBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Value of a sticky event. The first one stays, unless `replace` is true."""

    value: Any = None
    replace: bool = False


class EmittedView(Struct, frozen=True):
    """Answer to an emission: true if the event has the given value, false if an earlier one stays."""

    emitted: bool


async def emit_sticky_event(api: ApiRequest, name: str, body: StickyEventBody) -> EmittedView:
    """Emit a sticky event."""
    return EmittedView(await api.engine.events.emit(name, body.value, replace=body.replace))


class DeletedEventView(Struct, frozen=True):
    """Answer to a deletion: true if there was an event."""

    deleted: bool


async def delete_sticky_event(api: ApiRequest, name: str, query: ReasonQuery) -> DeletedEventView:
    """Delete a sticky event for good; it can be emitted and waited for anew."""
    return DeletedEventView(await api.engine.events.delete(name, query.reason))
