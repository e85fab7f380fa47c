from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from perdure import Context, Engine, Status, UsageError, workflow
from perdure.push import PushApp, QueueHandler, QueueMessage
from tests.stage import Stage


@workflow("push.web.v1")
async def web(ctx: Context, name: str) -> str:
    return await ctx.step(greet, name)


def greet(name: str) -> str:
    return f"hello {name}"


@workflow("push.nap.v1")
async def nap(ctx: Context) -> None:
    await ctx.sleep("90s")


def message(run_id: str, **more: object) -> dict[str, object]:
    return {
        "run_id": run_id,
        "retry_count": 0,
        "enqueued_at": time.time_ns() // 1_000_000,
        "authorization": None,
        **more,
    }


def client_of(app: PushApp, token: str = "s3cret") -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app=app)
    return httpx.AsyncClient(transport=transport, base_url="http://push", headers={"Authorization": f"Bearer {token}"})


@pytest.fixture
def engine(on_disk: Stage) -> Engine:
    return on_disk.engine(web, nap)


@pytest.fixture
async def app(engine: Engine) -> AsyncIterator[PushApp]:
    async with QueueHandler(engine) as handler:
        yield PushApp(handler, token="s3cret")


async def test_a_message_is_answered_by_the_status(engine: Engine, app: PushApp) -> None:
    run, sleeping = await engine.start(web("you")), await engine.start(nap())
    async with client_of(app) as client:
        done = await client.post("/", json=message(run.id))
        assert (done.status_code, done.json()["outcome"], done.json()["ack"]) == (200, "finished", True)
        assert await run.result() == "hello you"
        waits = await client.post("/", json=message(sleeping.id))
        assert (waits.status_code, waits.json()["outcome"]) == (503, "waiting")
        assert 80 <= int(waits.headers["retry-after"]) <= 90
        assert waits.json()["message"]["run_id"] == sleeping.id
        unknown = await client.post("/", json=message("missing"))
        assert (unknown.status_code, unknown.json()["outcome"]) == (503, "unknown")
        assert int(unknown.headers["retry-after"]) >= 1


async def test_each_message_of_a_batch_has_its_answer_in_the_body(engine: Engine, app: PushApp) -> None:
    runs = [await engine.start(web(name)) for name in "ab"]
    async with client_of(app) as client:
        batch = [message(runs[0].id), {"run_id": 7}, message(runs[1].id), message("missing")]
        answered = await client.post("/anywhere", json=batch)
        assert answered.status_code == 200
        assert [answer["outcome"] for answer in answered.json()["answers"]] == [
            "finished",
            "malformed",
            "finished",
            "unknown",
        ]
        assert [answer["ack"] for answer in answered.json()["answers"]] == [True, True, True, False]
        assert QueueMessage.decode(json.dumps(answered.json()["answers"][3]["message"])).retry_count == 1
        assert (await client.post("/", content="[]")).json() == {"answers": []}


async def test_what_is_ready_is_listed(engine: Engine, app: PushApp) -> None:
    run = await engine.start(web("you"))
    async with client_of(app) as client:
        assert (await client.post("/due")).json() == {"due": [run.id]}


@pytest.mark.parametrize(
    ("content", "status", "reason"),
    [
        (b"", 400, "not a queue message"),
        (b"{", 400, "not a queue message"),
        (b"[1, ", 400, "not a JSON array"),
        (b'{"run_id": "r1"}', 400, "enqueued_at"),
        (b"x" * 2_000_000, 413, "1048576 bytes"),
        (b"[" + b"1," * 1000 + b"1]", 413, "1000 messages"),
    ],
    ids=["nothing", "half an object", "half an array", "a field too few", "too large", "too many"],
)
async def test_bad_input_is_refused_with_a_reason(app: PushApp, content: bytes, status: int, reason: str) -> None:
    async with client_of(app) as client:
        answer = await client.post("/", content=content)
        assert (answer.status_code, reason in answer.json()["error"]) == (status, True), answer.text


async def test_a_body_that_lies_about_its_length_is_cut_off(app: PushApp) -> None:
    async def endless() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b"x" * 65_536

    async with client_of(app) as client:
        assert (await client.post("/", content=endless())).status_code == 413


@pytest.mark.parametrize("header", [None, "Bearer wrong", "Basic s3cret", "s3cret", "Bearer", "Bearer \xff"])
async def test_nobody_comes_in_without_the_token(engine: Engine, app: PushApp, header: str | None) -> None:
    run = await engine.start(web("you"))
    headers = [] if header is None else [(b"Authorization", header.encode("latin-1"))]
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://push") as client:
        for path in ("/", "/due"):
            answer = await client.post(path, json=message(run.id), headers=headers)
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
    assert await run.status() is Status.PENDING


async def test_other_methods_and_protocols_are_refused(app: PushApp) -> None:
    async with client_of(app) as client:
        answer = await client.get("/")
        assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
    with pytest.raises(UsageError, match="websocket"):
        await app({"type": "websocket"}, asyncio.Queue[Any]().get, asyncio.Queue[Any]().put)
    with pytest.raises(UsageError, match="empty token"):
        PushApp(app._handler, token="")


async def test_the_handler_lives_as_long_as_the_application(engine: Engine) -> None:
    app = PushApp(QueueHandler(engine), token=None)
    told, said = asyncio.Queue[Any](), asyncio.Queue[Any]()
    living = asyncio.ensure_future(app({"type": "lifespan"}, told.get, said.put))
    await told.put({"type": "lifespan.startup"})
    assert await said.get() == {"type": "lifespan.startup.complete"}
    assert [worker.status for worker in await engine.workers.list()] == ["alive"]
    await told.put({"type": "lifespan.shutdown"})
    assert await said.get() == {"type": "lifespan.shutdown.complete"}
    await living
    assert [worker.status for worker in await engine.workers.list()] == ["stopped"]


async def test_an_application_that_cannot_start_says_so(tmp_path: Any) -> None:
    engine = Engine(f"sqlite:///{tmp_path}/nowhere/runs.db", [web], migrate=False)
    said = asyncio.Queue[Any]()
    told = asyncio.Queue[Any]()
    await told.put({"type": "lifespan.startup"})
    await PushApp(QueueHandler(engine), token=None)({"type": "lifespan"}, told.get, said.put)
    assert (await said.get())["type"] == "lifespan.startup.failed"
