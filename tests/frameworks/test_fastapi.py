"""`perdure.fastapi` with the real framework: in this process, and as servers and workers that are killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from perdure import Engine
from perdure.errors import UsageError
from tests.frameworks.serving import EXAMPLES, Zygote, new_database, processes

EXAMPLE = EXAMPLES / "fastapi"
WORKER = ("-m", "perdure.cli", "worker", "orders:engine", "--lease", "2s")


LIBRARIES = ("fastapi", "uvicorn.main", "sqlalchemy.ext.asyncio", "asyncpg", "perdure.dashboard", "perdure.cli.workers")


def test_the_example_survives_the_loss_of_its_worker(tmp_path: Path) -> None:
    with new_database() as url:
        address = url.replace("://", "+asyncpg://")
        with processes(EXAMPLE, tmp_path, *LIBRARIES, DATABASE_URL=address) as made:
            server, found = made.start("-m", "uvicorn", "app:app", "--port", "0", until=r"running on (http://\S+)")
            with httpx.Client(base_url=found[1], timeout=90) as client:
                _check_order(client, made)
                _check_dashboard(client)
            server.stop()
            assert "Application shutdown complete" in made.noise()
            assert "Traceback" not in made.noise()
        with psycopg.connect(url) as connection:
            assert connection.execute("SELECT number FROM reserved").fetchall() == [(1,)]


def _check_order(client: httpx.Client, made: Zygote) -> None:
    assert client.put("/orders/1?article=").status_code == 422
    for _ in range(2):
        assert client.put("/orders/1?article=chair").json() == {"run": "order-1"}
    assert client.put("/orders/1?article=table").status_code == 409
    first, _ = made.start(*WORKER, until="has started")
    with client.stream("GET", "/orders/1/progress") as response:
        lines = (line for line in response.iter_lines() if line and not line.startswith(":"))
        assert [next(lines), next(lines)] == ["id: 0", 'data: "packing"']
        first.kill()
        second, _ = made.start(*WORKER)
        assert [next(lines), next(lines)] == ["id: 1", 'data: "packed; waiting for the payment"']
    assert client.post("/orders/1/payment?cents=900").json() == "parcel with chair for 900 cents"
    after = client.get("/orders/1/progress", headers={"last-event-id": "0"}).text
    assert after.split("\n\n")[1:] == ['event: end\ndata: {"done":true}', ""]
    assert second.stop() == 0


def _check_dashboard(client: httpx.Client) -> None:
    page = client.get("/perdure/runs/order-1")
    assert (page.status_code, page.headers["location"]) == (303, "/login?next=%2Fperdure%2Fruns%2Forder-1")
    assert client.get(page.headers["location"]).status_code == 401
    shown = client.get(page.headers["location"], auth=("ann", "secret"), follow_redirects=True)
    assert shown.status_code == 200
    assert "parcel with chair" in shown.text
    api = client.get("/perdure/api/v1/runs/order-1/result", auth=("ann", "secret"))
    assert api.json()["output"] == "parcel with chair for 900 cents"


@pytest.mark.filterwarnings("ignore:Using `httpx`")
def test_an_application_starts_several_times_with_an_engine_and_a_worker_each() -> None:
    from fastapi.testclient import TestClient

    from perdure.fastapi import engine_lifespan
    from tests.frameworks.fastapi_app import app, engines, site

    for _ in range(2):
        with TestClient(app) as client:
            assert client.get("/count?upto=3").json() == {"result": 3, "slots": 3, "greeting": "hello"}
            end = 'event: end\ndata: {"done":true}\n\n'
            assert client.get("/numbers?after=1").text == "id: 2\ndata: 2\n\n" + end
            answer = client.get("/numbers?after=1", headers={"last-event-id": "0"})
            assert answer.text == "id: 1\ndata: 1\n\nid: 2\ndata: 2\n\n" + end
            assert answer.headers["content-type"].startswith("text/event-stream")
            assert client.get("/numbers", headers={"last-event-id": "last"}).status_code == 400
            assert client.get("/perdure/api/v1/runs").json()["items"] == []
    assert len({id(engine) for engine in engines}) == site.closed == 2
    with pytest.raises(UsageError, match="lifespan=engine_lifespan"):
        TestClient(app).get("/count?upto=3")
    with pytest.raises(UsageError, match="give an Engine"):
        engine_lifespan("sqlite://")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"engine": "application"}, r"lifespan=engine_lifespan\(engine\)"),
        ({"engine": "coroutine function"}, "a function that makes one.*returned <coroutine"),
        ({"worker": 5}, r"worker=5.*worker=\{'slots': 50\}"),
    ],
    ids=["an application", "a coroutine function", "a number"],
)
@pytest.mark.filterwarnings("ignore:Using `httpx`")
def test_a_wrong_lifespan_is_told_what_is_wrong(arguments: dict[str, Any], told: str) -> None:
    from starlette.applications import Starlette
    from starlette.testclient import TestClient

    from perdure.starlette import engine_lifespan
    from tests.frameworks.fastapi_app import memory_engine

    async def make_engine() -> Engine:
        return memory_engine()

    engines: dict[str, Any] = {"application": Starlette(), "coroutine function": make_engine}
    engine = engines.get(arguments.pop("engine", ""), memory_engine)

    def serve() -> None:
        with TestClient(Starlette(lifespan=engine_lifespan(engine, **arguments))):
            pass

    with pytest.raises(UsageError, match=told):
        serve()


@pytest.mark.filterwarnings("ignore:Using `httpx`")
def test_an_application_of_starlette_takes_the_same_parts() -> None:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import PlainTextResponse, Response
    from starlette.routing import Route
    from starlette.testclient import TestClient

    from perdure.starlette import engine_lifespan, get_engine
    from tests.frameworks.fastapi_app import memory_engine
    from tests.frameworks.flows import count

    async def read(request: Request) -> Response:
        run = await get_engine(request).start(count(2))
        return PlainTextResponse(str(await run.result()))

    app = Starlette(routes=[Route("/", read)], lifespan=engine_lifespan(memory_engine(), worker=True))
    with TestClient(app) as client:
        assert client.get("/").text == "2"
