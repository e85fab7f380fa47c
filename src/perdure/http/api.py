"""The parts of a request that handlers use, and the kinds of answers that they give."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar

import msgspec
from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import StreamingResponse

from perdure.client.engine import Engine
from perdure.client.handle import Handle
from perdure.client.runs.start import Moment
from perdure.client.session import session_of
from perdure.core.ids import check_id
from perdure.core.model.cloud_event import EVENT_TYPE, check_event_arguments
from perdure.core.printed_text import brief
from perdure.core.system import System
from perdure.core.time.duration import microseconds
from perdure.errors import InvalidDuration, UnknownWorkflow, UsageError
from perdure.http.access import Authenticator, Principal
from perdure.http.redaction import Redactor
from perdure.workflow.definition import Call

if TYPE_CHECKING:
    from perdure.http.live import Hub

T = TypeVar("T")

#: Media type of server-sent events.
EVENT_STREAM = "text/event-stream"

#: Size of a page.
Limit = Annotated[int, Meta(ge=1, le=1000, description="Most items of a page.")]
#: A position in a stream, or the number of an event.
Position = Annotated[int, Meta(ge=0, le=2**63 - 1)]
#: Longest wait that a request may ask for, in seconds; the server may bound it further.
WaitSeconds = Annotated[float, Meta(ge=0, le=300, description="Seconds to wait.")]
#: A point in time with its offset from UTC.
Instant = Annotated[datetime.datetime, Meta(tz=True)]
#: A point in time with its offset from UTC, or a duration from now.
WhenText = Annotated[
    str, Meta(description="Time such as 2030-01-31T09:00Z, or duration from now such as 1h30m.", examples=["1h30m"])
]
#: A length of time.
DurationText = Annotated[str, Meta(description="Duration such as 1h30m.", examples=["1h30m"])]
Reason = Annotated[str, Meta(max_length=10_000, description="Stored in the audit trail.")]
#: Arguments of a workflow, by name or by position.
Arguments = dict[str, Any] | list[Any]


class ReasonBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Reason of a change, for the audit trail."""

    reason: Reason = ""


class ReasonQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Reason of a change by a method without a body, for the audit trail."""

    reason: Reason = ""


class ApiServices(Struct, frozen=True):
    """Parts of the application that handlers share."""

    authenticator: Authenticator
    hub: Hub
    #: Longest wait of a request, in seconds.
    longest_wait: float
    #: The OpenAPI document, encoded.
    document: Callable[[], bytes]
    #: Start the worker that acts on many runs, unless it runs already.
    start_bulk_worker: Callable[[], Awaitable[None]]


class ApiRequest(Struct, frozen=True):
    """One request of a caller who may make it."""

    #: The engine; its writes name the caller in the audit trail.
    engine: Engine
    principal: Principal
    shown: Redactor
    request: Request
    services: ApiServices

    def wait(self, seconds: float) -> float:
        """Bound a wait that the caller asks for."""
        return min(seconds, self.services.longest_wait)


class Reply(Struct, Generic[T], frozen=True):
    """An answer with a status or headers of its own."""

    value: T
    status: int = 200
    headers: Mapping[str, str] = {}


class ServerEvent(Struct, frozen=True):
    """A server-sent event. `id` comes back as `Last-Event-ID` when the client reconnects."""

    data: Any
    id: str = ""
    event: str = ""


class EventStream(Struct, frozen=True):
    """An answer of server-sent events, as they come."""

    events: AsyncIterator[ServerEvent | None]


def event_text(event: ServerEvent | None) -> bytes:
    """Encode a server-sent event; None is a comment, a sign of life."""
    if event is None:
        return b": \n\n"
    lines = [f"{name}: {value}" for name, value in (("event", event.event), ("id", event.id)) if value]
    return "\n".join([*lines, "data: "]).encode() + msgspec.json.encode(event.data) + b"\n\n"


async def with_signs_of_life(
    system: System,
    events: AsyncIterator[ServerEvent | None],
    interval: float,
    end: asyncio.Future[None] | None = None,
) -> AsyncGenerator[ServerEvent | None]:
    """Yield events as they come until `end` is done, and None after each interval (in seconds) without one."""
    pending: asyncio.Task[ServerEvent | None] | None = None
    try:
        while end is None or not end.done():
            if pending is None:
                pending = system.spawn(_next(events), "perdure event")
            either: set[asyncio.Future[Any]] = {pending} if end is None else {pending, end}
            done, _ = await asyncio.wait(either, timeout=interval, return_when=asyncio.FIRST_COMPLETED)
            if pending not in done:
                if not done:
                    yield None
                continue
            try:
                event = pending.result()
            except StopAsyncIteration:
                return
            pending = None
            yield event
    finally:
        if pending is not None:
            pending.cancel()
            await asyncio.wait({pending})
        if isinstance(events, AsyncGenerator):
            await events.aclose()


async def _next(events: AsyncIterator[ServerEvent | None]) -> ServerEvent | None:
    return await anext(events)


class EventStreamResponse(StreamingResponse):
    """Server-sent events. Their end is reported and their source closed, even if the client left before they began."""

    def __init__(self, texts: AsyncGenerator[bytes], headers: Mapping[str, str], on_end: Callable[[], None]) -> None:
        super().__init__(texts, 200, headers, media_type=EVENT_STREAM)
        self._texts = texts
        self._on_end = on_end

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Send the events."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._on_end()
            await self._texts.aclose()


def moment(text: str | None) -> Moment | None:
    """Parse a time with its offset from UTC, or a duration. Raises `InvalidDuration`."""
    if text is None:
        return None
    with suppress(InvalidDuration):
        return datetime.timedelta(microseconds=microseconds(text))
    with suppress(ValueError):
        time = datetime.datetime.fromisoformat(text)
        if time.utcoffset() is not None:
            return time
    raise InvalidDuration(
        f"{brief(text)} is neither a duration such as 1h30m nor a time with its offset such as 2030-01-31T09:00Z"
    )


def call_of(engine: Engine, type: str, arguments: Arguments) -> Call[Any]:
    """Make a call of JSON arguments, checked by the types of the code if the engine has it.

    Raises `UnknownWorkflow`, `BadArguments` and `DecodeError`.
    """
    if type == EVENT_TYPE:
        check_event_arguments(arguments)
    elif engine.workflows and type not in engine.workflows:
        known_types = ", ".join(sorted(engine.workflows))
        raise UnknownWorkflow(f"this engine has no workflow {brief(type)}; it has {known_types}")
    if isinstance(arguments, list):
        call = Call.named(type, *arguments)
    else:
        call = Call.named(type, **arguments)
    session = session_of(engine)
    known = session.resolve_call(call)
    if known.definition is not None:
        # A client without the code cannot check the types by itself, and the run would only fail later.
        known.definition.signature.decode(known.encode(session.codec), session.codec, f"input of {type}")
    return known


def handle_on(api: ApiRequest, run_id: str) -> Handle[Any]:
    """A handle that leaves results as the JSON that they are."""
    return Handle(session_of(api.engine), check_id(run_id), Any)


def last_event_id(api: ApiRequest, otherwise: int | None) -> int | None:
    """Number in the header `Last-Event-ID`. Raises `UsageError` if it is none."""
    return parse_event_id(api.request.headers.get("last-event-id"), otherwise)


def parse_event_id(text: str | None, otherwise: int | None) -> int | None:
    """Parse the header `Last-Event-ID`; `otherwise` if there is none. Raises `UsageError`."""
    if text is None or text == "":
        return otherwise
    if not text.isdecimal() or not text.isascii() or len(text) > 18:
        raise UsageError(f"the header Last-Event-ID is a position, such as 17, not {text[:40]!r}")
    return int(text)
