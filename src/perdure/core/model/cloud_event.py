"""Events for other systems, in the form of CloudEvents 1.0, and the runs that deliver them.

A published event is a run of the type `EVENT_TYPE`, which starts a run for each subscription that wants the event. The
type of that run is `DELIVERY_PREFIX` and the name of the subscription.
"""

from __future__ import annotations

import datetime
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from perdure.core.codec.decoders import convert_to, decoder_for
from perdure.core.ids import check_id, check_key
from perdure.core.model.run import Run, Status
from perdure.core.time.duration import moment_of
from perdure.errors import DecodeError, UsageError

EVENT_TYPE = "perdure.event.v1"
DELIVERY_PREFIX = "perdure.delivery."
#: Media type of an event in structured mode.
CONTENT_TYPE = "application/cloudevents+json"
#: Beginning of the id of a run whose event has an id of the user's, so that it takes no id of another run.
_OWN_ID = "event:"


class CloudEvent(Struct, frozen=True, kw_only=True):
    """An event for other systems. The fields are the attributes of CloudEvents 1.0."""

    type: str
    source: str
    #: With the source unique: receivers recognise an event that they get twice. Empty until the event is delivered, if
    #: the publisher gave none.
    id: str = ""
    subject: str | None = None
    #: None until the event is delivered, if it was published outside of a workflow.
    time: datetime.datetime | None = None
    #: Events of a key are delivered in the order of their publication.
    partitionkey: str | None = None
    data: Any = None
    datacontenttype: str = "application/json"
    specversion: str = "1.0"

    def to_json(self) -> bytes:
        """Encode it for a receiver, in structured mode; attributes without a value are left out."""
        return msgspec.json.encode({name: value for name, value in asdict(self).items() if value is not None})


class PublishedEvent(Struct, frozen=True, kw_only=True):
    """An event and the runs that deliver it."""

    event: CloudEvent
    #: Run that hands it to the subscriptions, and its status.
    run_id: str
    status: Status
    #: Runs that deliver it, one for each subscription that wanted it; empty before it was handed to them.
    deliveries: tuple[str, ...] = ()


class CloudEventPage(Struct, frozen=True):
    """Part of a listing of events, and the cursor of the next part; None at the end."""

    events: tuple[PublishedEvent, ...]
    cursor: str | None = None


class _Input(Struct, frozen=True):
    """Input of a run that hands an event on; the field names are part of the stored format."""

    event: CloudEvent
    to: str | None = None


_input = decoder_for(_Input)
_output = decoder_for(tuple[str, ...])


def make_event(
    type: str,
    data: Any,
    *,
    source: str,
    subject: str | None,
    key: str | None,
    id: str | None,
    time: datetime.datetime | None = None,
) -> CloudEvent:
    """Check the attributes of an event whose data is plain JSON. Raises `InvalidId`."""
    return CloudEvent(
        type=check_key(type, "type of an event"),
        source=check_key(source, "source of an event"),
        id="" if id is None else check_key(id, "id of an event"),
        subject=None if subject is None else check_id(subject, "subject of an event"),
        time=time,
        partitionkey=None if key is None else check_key(key, "key of an event"),
        data=data,
    )


def event_run_id(event_id: str) -> str:
    """Return the id of the run of an event that has an id of the user's."""
    return f"{_OWN_ID}{event_id}"


def event_attributes(event: CloudEvent) -> dict[str, str]:
    """Attributes by which the run of an event is found."""
    found = {"event": event.type}
    return found if event.partitionkey is None else {**found, "event_key": event.partitionkey}


def check_event_arguments(arguments: object) -> None:
    """Check JSON arguments of a run that hands an event on. Raises `DecodeError` and `InvalidId`."""
    try:
        event = convert_to(_Input, arguments).event
    except msgspec.ValidationError as error:
        raise DecodeError(f"the arguments are no event: {error}") from None
    make_event(
        event.type,
        event.data,
        source=event.source,
        subject=event.subject,
        key=event.partitionkey,
        id=event.id or None,
    )


def published_event(run: Run) -> PublishedEvent:
    """Read the event of a run. Raises `UsageError`, and `DecodeError` if it is damaged."""
    if run.type != EVENT_TYPE:
        raise UsageError(f"run {run.id!r} is a {run.type!r} and no published event")
    return PublishedEvent(
        event=event_of(run),
        run_id=run.id,
        status=run.status,
        deliveries=_deliveries(run),
    )


def _deliveries(run: Run) -> tuple[str, ...]:
    try:
        return () if run.output is None else _output.decode(run.output)
    except msgspec.MsgspecError as error:
        raise DecodeError(f"the result of run {run.id!r} is no list of deliveries: {error}") from None


def listed_event(run: Run) -> PublishedEvent:
    """Read the event of a run; one that is damaged, or hidden by a server, has neither type nor data."""
    try:
        return published_event(run)
    except DecodeError:
        unknown = CloudEvent(type="", source="", id=run.id, time=moment_of(run.created_at))
        return PublishedEvent(event=unknown, run_id=run.id, status=run.status)


def event_of(run: Run) -> CloudEvent:
    """Read the event of a run as receivers see it, with an id and a time. Raises `DecodeError`."""
    try:
        event = _input.decode(run.input).event
    except msgspec.MsgspecError as error:
        raise DecodeError(f"the input of run {run.id!r} is no event: {error}") from None
    if event.id and event.time is not None:
        return event
    return msgspec.structs.replace(event, id=event.id or run.id, time=event.time or moment_of(run.created_at))
