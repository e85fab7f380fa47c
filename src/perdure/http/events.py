"""Handlers for sticky events, and for events that are published for other systems."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from msgspec import Struct

from perdure.core.model.cloud_event import DELIVERY_PREFIX, PublishedEvent
from perdure.core.model.events import StickyEvent
from perdure.core.model.run import Run
from perdure.http.api import ApiRequest, Limit, ReasonQuery, Reply, WaitSeconds
from perdure.http.redaction import FailureView, Redactor
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


#: Attributes of the run of an event.
_TYPE, _KEY = "event", "event_key"


class PublishedEventView(Struct, frozen=True, kw_only=True):
    """An event for other systems. The first fields are the attributes of CloudEvents 1.0."""

    id: str
    type: str
    source: str
    subject: str | None
    time: Time
    partitionkey: str | None
    data: Any
    #: Run that hands it to the subscriptions, and its status.
    run_id: str
    status: str
    #: Runs that deliver it; empty before it was handed to subscriptions.
    deliveries: tuple[str, ...]

    @classmethod
    def of(cls, one: PublishedEvent, shown: Redactor) -> PublishedEventView:
        """Convert an event."""
        event = one.event
        return cls(
            id=event.id,
            type=event.type,
            source=event.source,
            subject=None if event.subject is None else shown.text(event.subject),
            time=event.time,
            partitionkey=None if event.partitionkey is None else shown.members({_KEY: event.partitionkey})[_KEY],
            data=shown.value(event.data),
            run_id=one.run_id,
            status=one.status.value,
            deliveries=one.deliveries,
        )


class PublishedEventsQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Events of a type, which may end in `%`, and of a key; the latest first."""

    type: str | None = None
    key: str | None = None
    limit: Limit = 50
    cursor: str | None = None


async def list_published_events(api: ApiRequest, query: PublishedEventsQuery) -> Page[PublishedEventView]:
    """List events that were published for other systems, the latest first."""
    api.shown.check_filter(
        None, [name for name, given in ((_TYPE, query.type), (_KEY, query.key)) if given is not None]
    )
    page = await api.engine.outbox.list(type=query.type, key=query.key, limit=query.limit, cursor=query.cursor)
    return Page(tuple(PublishedEventView.of(one, api.shown) for one in page.events), page.cursor)


class PublishBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An event for other systems. With an `id`, publishing it twice is publishing it once."""

    type: str
    data: Any = None
    #: Events of a key are delivered in the order of their publication.
    key: str | None = None
    subject: str | None = None
    source: str = "perdure"
    id: str | None = None


class PublishedIdView(Struct, frozen=True):
    """Id of a published event."""

    id: str


async def publish_event(api: ApiRequest, body: PublishBody) -> PublishedIdView:
    """Publish an event for other systems."""
    published = await api.engine.outbox.publish(
        body.type, body.data, key=body.key, subject=body.subject, source=body.source, id=body.id
    )
    return PublishedIdView(published)


class DeliveryView(Struct, frozen=True, kw_only=True):
    """A run that delivers an event to a subscription."""

    subscription: str
    run_id: str
    status: str
    attempt: int
    error: FailureView | None

    @classmethod
    def of(cls, run: Run, shown: Redactor) -> DeliveryView:
        """Convert a run."""
        return cls(
            subscription=run.type.removeprefix(DELIVERY_PREFIX),
            run_id=run.id,
            status=run.status.value,
            attempt=run.attempt,
            error=shown.failure(run.error),
        )


class DeliveredEventView(Struct, frozen=True):
    """An event, and the runs that deliver it."""

    event: PublishedEventView
    deliveries: tuple[DeliveryView, ...]


async def show_published_event(api: ApiRequest, event_id: str) -> DeliveredEventView:
    """Read an event and its deliveries, one for each subscription that wants it."""
    found = await api.engine.outbox.get(event_id)
    runs = await api.engine.outbox.deliveries(event_id)
    return DeliveredEventView(
        PublishedEventView.of(found, api.shown), tuple(DeliveryView.of(run, api.shown) for run in runs)
    )


class ReplayBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Subscription that gets the event again; all that want it by default."""

    to: str | None = None


class ReplayedEventView(Struct, frozen=True):
    """Run that delivers an event again."""

    run_id: str


async def replay_published_event(api: ApiRequest, event_id: str, body: ReplayBody) -> ReplayedEventView:
    """Deliver an event again, with the same id."""
    [run_id] = await api.engine.outbox.replay(event_id, to=body.to)
    return ReplayedEventView(run_id)
