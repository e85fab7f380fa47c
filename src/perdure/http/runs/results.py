"""Handlers for outcomes, published states and streams of runs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, Literal

from msgspec import Struct

from perdure.client.handle import Handle
from perdure.client.runs.results import latest_state, next_state, within
from perdure.client.session import session_of
from perdure.core.ids import check_name
from perdure.core.model.outputs import OutputKind, check_stream
from perdure.core.model.run import Run, Status
from perdure.core.time.duration import NEVER
from perdure.errors import RunCancelled, RunFailed
from perdure.http.api import (
    ApiRequest,
    EventStream,
    Limit,
    Position,
    Reply,
    ServerEvent,
    WaitSeconds,
    handle_on,
    last_event_id,
)
from perdure.http.redaction import FailureView, Redactor
from perdure.http.views import Done, Page, Payload, view_of


class OutcomeView(Struct, frozen=True, kw_only=True):
    """Outcome of a run; `finished` is false while it has none."""

    id: str
    type: str
    status: Status
    finished: bool
    output: Payload = None
    error: FailureView | None = None

    @classmethod
    def of(cls, run: Run, shown: Redactor) -> OutcomeView:
        """Convert the outcome of a run."""
        finished = run.status.finished
        return view_of(cls, run, shown, finished=finished, error=shown.failure(run.error) if finished else None)


class ResultQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Time to wait for the outcome."""

    wait: WaitSeconds = 0


async def result(api: ApiRequest, run_id: str, query: ResultQuery) -> Reply[OutcomeView]:
    """Read the outcome of a run, waiting for it for `wait` seconds. Status 202 if there is none yet."""
    handle = handle_on(api, run_id)
    run = await handle.info()
    if query.wait and not run.status.finished:
        with suppress(RunFailed, RunCancelled, TimeoutError):
            await handle.result(api.wait(query.wait))
        run = await handle.info()
    return Reply(OutcomeView.of(run, api.shown), 200 if run.status.finished else 202)


async def states(api: ApiRequest, run_id: str) -> dict[str, Any]:
    """Read everything that a run has published, by key."""
    return api.shown.members(await handle_on(api, run_id).states())


class StateView(Struct, frozen=True):
    """A published value; `published` is false if there is none."""

    published: bool
    value: Any = None
    #: Time of the publication, by which a value is told from the next one.
    at: int = 0
    #: The run has ended and publishes nothing more.
    finished: bool = False


class StateQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Time to wait for a value, or for another one than that of the time `seen`."""

    wait: WaitSeconds = 0
    seen: Position = 0


async def state(api: ApiRequest, run_id: str, key: str, query: StateQuery) -> StateView:
    """Read the latest value that a run published under a key, waiting for one after `seen` for `wait` seconds."""
    name, session = check_name(key, "key of a state"), session_of(api.engine)
    run = await handle_on(api, run_id).info()
    found, ended = await latest_state(session, run_id, name), run.status.finished
    if query.wait and not ended and (found is None or found.at == query.seen):
        with suppress(TimeoutError):
            found, ended = await within(
                session.system,
                lambda: next_state(session, run_id, name, query.seen),
                f"perdure state {run_id}",
                api.wait(query.wait),
                "nothing was published",
            )
    if found is None:
        return StateView(published=False, finished=ended)
    value = session.codec.decode(found.payload, Any, f"state {name!r} of run {run_id!r}")
    return StateView(True, api.shown.members({key: value})[key], found.at, ended)


class ItemView(Struct, frozen=True, kw_only=True):
    """An item of a stream."""

    position: int
    value: Any
    source: str


class StreamQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A page of the items of a stream, from the oldest or the newest on."""

    #: Position after which the page begins; before which, from the newest on.
    cursor: Position | None = None
    limit: Limit = 100
    order: Literal["oldest", "newest"] = "oldest"


async def stream_items(api: ApiRequest, run_id: str, name: str, query: StreamQuery) -> Page[ItemView]:
    """Read the items of a stream that are there, from the first or after a position; or from the newest on."""
    if query.order == "newest":
        return await _newest_items(api, run_id, name, query)
    items: list[ItemView] = []
    found = handle_on(api, run_id).stream(name, after=query.cursor, follow=False)
    async for one in found:
        if len(items) == query.limit:
            await found.aclose()
            return Page(tuple(items), str(items[-1].position))
        items.append(ItemView(position=one.position, value=api.shown.value(one.value), source=one.source))
    return Page(tuple(items))


async def _newest_items(api: ApiRequest, run_id: str, name: str, query: StreamQuery) -> Page[ItemView]:
    handle = handle_on(api, run_id)
    check_stream(name, None)
    await handle.info()
    store = await session_of(api.engine).connect()
    before = NEVER if query.cursor is None else query.cursor
    rows = await store.outputs(run_id, OutputKind.STREAM, name, -1, query.limit, before=before)
    items = tuple(
        ItemView(position=one.position, value=api.shown.payload(one.payload), source=one.source)
        for one in reversed(rows)
    )
    more = items and items[-1].position > 0
    return Page(items, str(items[-1].position) if more else None)


class FollowQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """First item to send. The header `Last-Event-ID` goes before `after`."""

    after: Position | None = None


async def follow_stream(api: ApiRequest, run_id: str, name: str, query: FollowQuery) -> EventStream:
    """Follow a stream as server-sent events until the run ends. The id of an event is the position of its item."""
    handle = handle_on(api, run_id)
    await handle.info()
    return EventStream(_followed(api, handle, name, last_event_id(api, query.after)))


async def _followed(api: ApiRequest, handle: Handle[Any], name: str, after: int | None) -> AsyncIterator[ServerEvent]:
    async for one in handle.stream(name, after=after):
        item = ItemView(position=one.position, value=api.shown.value(one.value), source=one.source)
        yield ServerEvent(item, id=str(one.position), event="item")
    yield ServerEvent(Done(True), event="end")
