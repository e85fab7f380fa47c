"""An application of FastAPI on an engine in memory. FastAPI reads the annotations of a module's functions only."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response

from perdure import Engine
from perdure.fastapi import CurrentEngine, engine_lifespan, stream_response
from perdure.http import Access, HttpApp
from tests.frameworks.flows import count

#: Engines that requests have seen.
engines: list[Engine] = []


def memory_engine() -> Engine:
    return Engine("sqlite://", [count])


@asynccontextmanager
async def own(app: FastAPI) -> AsyncIterator[dict[str, Any]]:
    yield {"greeting": "hello"}


class Site(HttpApp):
    """Counts how often it was closed."""

    closed = 0

    async def close(self) -> None:
        self.closed += 1
        await super().close()


app = FastAPI(lifespan=engine_lifespan(memory_engine, worker={"slots": 3}, lifespan=own))
site = Site(memory_engine(), access=Access(hosts=["testserver"], anonymous="viewer"))
app.mount("/perdure", site)


@app.get("/count")
async def read(upto: int, request: Request, engine: CurrentEngine) -> dict[str, Any]:
    engines.append(engine)
    run = await engine.start(count(upto), id="count")
    [worker] = await engine.workers.list()
    return {"result": await run.result(), "slots": worker.slots, "greeting": request.state.greeting}


@app.get("/numbers", response_class=Response)
async def numbers(request: Request, engine: CurrentEngine, after: int | None = None) -> Response:
    return stream_response(request, await engine.get("count"), "numbers", after=after)
