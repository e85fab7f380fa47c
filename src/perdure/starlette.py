"""Perdure in applications of Starlette: the life of an engine, and the stream of a run for a browser.

`perdure.fastapi` has the same parts for FastAPI. It needs `starlette`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.responses import StreamingResponse
from starlette.routing import Mount

from perdure.client.engine import Engine
from perdure.client.handle import Handle
from perdure.client.session import session_of
from perdure.core.model.outputs import StreamItem, check_stream
from perdure.core.printed_text import brief
from perdure.errors import UsageError
from perdure.http.api import EventStreamResponse, ServerEvent, event_text, parse_event_id, with_signs_of_life
from perdure.http.app import KEEP_ALIVE, HttpApp
from perdure.worker import WorkerOptions

__all__ = ["engine_lifespan", "get_engine", "stream_response"]

#: Name of the engine in the state of the application's lifespan.
_STATE = "perdure_engine"
_WANTED = "give an Engine, or a function that makes one: lifespan=engine_lifespan(engine)"
#: Headers of a stream: no cache stores it, and no proxy buffers it.
_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}

Lifespan = Callable[[Any], AbstractAsyncContextManager[Mapping[str, Any] | None]]


def engine_lifespan(
    engine: Engine | Callable[[], Engine],
    *,
    worker: bool | WorkerOptions = False,
    lifespan: Lifespan | None = None,
) -> Callable[[Any], AbstractAsyncContextManager[dict[str, Any]]]:
    """Make the lifespan of an application: open an engine when it starts, close the engine when it ends.

    A closed engine cannot be opened again. Give a function that makes the engine if the application starts several
    times in a process, as in tests. With `worker`, the application also works on runs: True, or options of
    `Engine.worker`. `lifespan` is the application's own, which begins after the engine and ends before it. The lifespan
    also ends each `HttpApp` that is mounted in the application.
    """
    if isinstance(engine, Starlette) or not (isinstance(engine, Engine) or callable(engine)):
        raise UsageError(f"engine={brief(engine)}: {_WANTED}")
    if not isinstance(worker, bool | Mapping):
        raise UsageError(f"worker={brief(worker)}: give True, or options of a worker, such as worker={{'slots': 50}}")

    @asynccontextmanager
    async def live(app: Any) -> AsyncGenerator[dict[str, Any]]:
        async with AsyncExitStack() as stack:
            opened = await stack.enter_async_context(engine if isinstance(engine, Engine) else _made_by(engine))
            if worker is not False:
                options = WorkerOptions() if worker is True else worker
                await stack.enter_async_context(opened.worker(**options))
            state: dict[str, Any] = {_STATE: opened}
            if lifespan is not None:
                own = await stack.enter_async_context(lifespan(app))
                state.update({} if own is None else own)
            for site in _mounted(getattr(app, "routes", ())):
                stack.push_async_callback(site.close)
            yield state

    return live


def _made_by(factory: Callable[[], object]) -> Engine:
    made = factory()
    if isinstance(made, Engine):
        return made
    if isinstance(made, Coroutine):
        made.close()  # else Python warns of it
    raise UsageError(f"engine={brief(factory)}: {_WANTED}; this one returned {brief(made)}")


def _mounted(routes: Iterable[object]) -> list[HttpApp]:
    mounts = [route for route in routes if isinstance(route, Mount)]
    found = [mount.app for mount in mounts if isinstance(mount.app, HttpApp)]
    return found + [site for mount in mounts for site in _mounted(mount.routes or ())]


def get_engine(connection: HTTPConnection) -> Engine:
    """Return the engine of the application, by a request or a websocket of it."""
    engine = connection.scope.get("state", {}).get(_STATE)
    if not isinstance(engine, Engine):
        raise UsageError(
            "this application has no engine; make it with lifespan=engine_lifespan(engine), and in a test enter the "
            "client, which runs the lifespan: `with TestClient(app) as client`"
        )
    return engine


def stream_response(
    connection: HTTPConnection, run: Handle[Any], name: str, *, after: int | None = None
) -> StreamingResponse:
    """Answer a request with the items of a run's stream as server-sent events, until the run ends.

    The data of an event is the item as JSON, its id the position of the item. A browser that reconnects goes on after
    the last event it saw (`Last-Event-ID`). The last event is called `end`. `after` is the position to begin after.
    """
    check_stream(name, None)
    try:
        after = parse_event_id(connection.headers.get("last-event-id"), after)
    except UsageError as error:
        raise HTTPException(400, str(error)) from None
    system = session_of(get_engine(connection)).system

    async def texts() -> AsyncGenerator[bytes]:
        async with aclosing(with_signs_of_life(system, _events(run.stream(name, after=after)), KEEP_ALIVE)) as events:
            async for event in events:
                yield event_text(event)

    return EventStreamResponse(texts(), _HEADERS, _nothing)


async def _events(items: AsyncGenerator[StreamItem[Any]]) -> AsyncGenerator[ServerEvent]:
    async with aclosing(items):
        async for item in items:
            yield ServerEvent(item.value, id=str(item.position))
    yield ServerEvent({"done": True}, event="end")


def _nothing() -> None:
    """Do nothing at the end of a stream."""
