from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterable
from typing import Any

import httpx
import pytest

from perdure import Context, Engine, Status, UsageError, workflow
from perdure.push import MessageOutcome, MessageResult, PushApp, QueueHandler, QueueMessage, SigningKeys
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


async def test_only_signed_messages_come_in_where_there_are_keys(engine: Engine) -> None:
    old, new, other = (SigningKeys.generate() for _ in range(3))
    run = await engine.start(web("you"))
    body = json.dumps(message(run.id)).encode()
    good = SigningKeys(old).sign(body)

    async def post(headers: object, content: bytes = body, path: str = "/") -> tuple[int, str]:
        answer = await client.post(path, content=content, headers=headers)  # type: ignore[arg-type]  # pairs or a mapping
        return answer.status_code, answer.json().get("error", "")

    async with (
        QueueHandler(engine) as handler,
        httpx.AsyncClient(
            transport=httpx.ASGITransport(app=PushApp(handler, keys=[new, old])), base_url="http://push"
        ) as client,
    ):
        refused = {
            "not signed": await post({}),
            "webhook-signature is missing": await post({name: good[name] for name in list(good)[:2]}),
            "the key differs": await post(SigningKeys(other).sign(body)),
            "the message was changed": await post(good, body + b" "),
            "no signature in": await post({**good, "webhook-signature": "v1a,AAAA v2,BBBB v1, v1"}),
            "or the message": await post({**good, "webhook-id": "msg_other"}),
            "number of seconds": await post({**good, "webhook-timestamp": b"\xb2"}),
            "since the epoch": await post({**good, "webhook-timestamp": "9" * 500}),
            "seconds ago": await post(SigningKeys(old).sign(body, delay=-301)),
            "seconds ahead": await post(SigningKeys(old).sign(body, delay=330)),
            "is there twice": await post([*good.items(), ("Webhook-Id", good["webhook-id"])]),
            "too long": await post({**good, "webhook-signature": "v1,AA " * 1000}),
            "webhook-id is missing": await post({}, b"", "/due"),
        }
        for reason, (status, error) in refused.items():
            assert (status, reason in error) == (401, True), (reason, error)
        assert await run.status() is Status.PENDING
        due = await client.post("/due", headers=SigningKeys(new).sign(b""))
        assert due.json() == {"due": [run.id]}
        # A clock that differs is tolerated, and one valid signature among others is enough.
        near = SigningKeys(old).sign(body, delay=-290)
        near["webhook-signature"] = f"v1a,xyz {near['webhook-signature']} v1,AAAA"
        assert await post(near) == (200, "")
    assert await run.result() == "hello you"


async def test_a_captured_message_does_not_list_what_is_ready(engine: Engine) -> None:
    keys = SigningKeys(SigningKeys.generate())
    async with QueueHandler(engine) as handler:
        app = PushApp(handler, keys=keys)
        async with client_of(app) as client:
            for body in (json.dumps(message("o-1")).encode(), json.dumps([message("o-1")]).encode()):
                assert (await client.post("/due", content=body, headers=keys.sign(body))).status_code == 400
            for body in (b"", b"{}", b"tick"):
                assert (await client.post("/due", content=body, headers=keys.sign(body))).status_code == 200


@pytest.mark.parametrize("token", [b"s3cret", "", "\ud800", 7])
async def test_a_token_that_is_no_text_is_refused_and_not_repeated(engine: Engine, token: Any) -> None:
    with pytest.raises(UsageError, match="protects nothing") as refused:
        PushApp(QueueHandler(engine), token=token)
    assert "s3cret" not in str(refused.value)


async def test_where_there_are_keys_and_a_token_both_are_needed(engine: Engine) -> None:
    keys = SigningKeys(SigningKeys.generate())
    run = await engine.start(web("you"))
    body = json.dumps(message(run.id)).encode()
    signed, bearer = keys.sign(body), {"Authorization": "Bearer s3cret"}
    async with (
        QueueHandler(engine) as handler,
        httpx.AsyncClient(
            transport=httpx.ASGITransport(app=PushApp(handler, keys=keys, token="s3cret")), base_url="http://push"
        ) as client,
    ):
        assert (await client.post("/", content=body, headers=signed)).status_code == 401
        assert (await client.post("/", content=body, headers=bearer)).status_code == 401
        assert (await client.post("/", content=body, headers={**signed, **bearer})).status_code == 200


BEARER = (b"authorization", b"Bearer s3cret")


async def status_of(app: PushApp, parts: Iterable[bytes], *headers: tuple[bytes, bytes]) -> int:
    """Post a body in parts, as a server would hand them over; the status of the answer."""
    left, said = list(parts), list[Any]()

    async def receive() -> dict[str, Any]:
        if not left:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": left.pop(0), "more_body": True}

    async def send(event: Any) -> None:
        said.append(event)

    scope = {"type": "http", "method": "POST", "path": "/", "headers": [BEARER, *headers]}
    await app(scope, receive, send)
    return int(said[0]["status"])


async def test_a_body_that_does_not_end_in_time_is_refused(engine: Engine) -> None:
    app = PushApp(QueueHandler(engine), token="s3cret", body_timeout=0.05)
    assert await status_of(app, []) == 408
    assert await status_of(app, [b"{"]) == 408

    said = list[Any]()

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": True}

    async def send(event: Any) -> None:
        said.append(event)

    await app({"type": "http", "method": "POST", "path": "/", "headers": [BEARER]}, receive, send)
    assert said[0]["status"] == 408


@pytest.mark.parametrize(
    ("value", "status"),
    [
        (b"9" * 5000, 413),
        (b"1048577", 413),
        (b"-1", 400),
        (b"1e3", 400),
        (b"\xc2\xb2", 400),
        (b"", 400),
        (b"0x10", 400),
    ],
)
async def test_a_length_is_checked_before_anything_is_read(app: PushApp, value: bytes, status: int) -> None:
    assert await status_of(app, [], (b"content-length", value)) == status


async def test_a_body_that_is_compressed_is_refused(app: PushApp) -> None:
    assert await status_of(app, [], (b"content-encoding", b"gzip")) == 415


@pytest.mark.parametrize("content", [b"[" * 200_000, b'{"run_id":' * 5000, b"[" + b"[" * 100_000 + b"]"])
async def test_a_body_that_is_nested_deeply_is_refused(app: PushApp, content: bytes) -> None:
    async with client_of(app) as client:
        answer = await client.post("/", content=content)
        assert answer.status_code in (400, 413), answer.text


async def test_a_closed_engine_is_a_reason_to_send_it_again(engine: Engine) -> None:
    run = await engine.start(web("you"))
    app = PushApp(QueueHandler(engine), token="s3cret")
    await engine.close()
    async with client_of(app) as client:
        for path in ("/", "/due"):
            answer = await client.post(path, json=message(run.id))
            assert (answer.status_code, "retry-after" in answer.headers) == (503, True), answer.text


async def test_an_error_that_was_not_expected_is_a_reason_to_send_it_again(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    async def enqueue(message: QueueMessage, delay: float) -> None:
        raise LookupError("no such queue")

    await engine.start(web("you"))
    async with QueueHandler(engine, enqueue=enqueue) as handler, client_of(PushApp(handler, token="s3cret")) as client:
        answer = await client.post("/due")
        assert (answer.status_code, answer.json()) == (
            503,
            {"error": "the request could not be processed; the log says why"},
        )
    assert "no such queue" in caplog.text


async def test_a_detail_that_is_no_text_is_escaped(app: PushApp, monkeypatch: pytest.MonkeyPatch) -> None:
    async def handle(self: QueueHandler, batch: object) -> list[MessageResult]:
        return [MessageResult(ack=False, outcome=MessageOutcome.FAILED, body=b"{}", detail="\ud800 is not there")]

    monkeypatch.setattr(QueueHandler, "handle", handle)
    async with client_of(app) as client:
        answer = await client.post("/", content=b"{}")
        assert (answer.status_code, answer.json()["detail"]) == (503, "\\ud800 is not there")


@pytest.mark.parametrize("header", [None, "Bearer wrong", "Basic s3cret", "s3cret", "Bearer", "Bearer \xff"])
async def test_a_request_without_the_token_is_refused(engine: Engine, app: PushApp, header: str | None) -> None:
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
    said = asyncio.Queue[Any]()
    await app({"type": "websocket"}, asyncio.Queue[Any]().get, said.put)
    assert (await said.get())["type"] == "websocket.close"
    with pytest.raises(UsageError, match="carrier pigeon"):
        await app({"type": "carrier pigeon"}, asyncio.Queue[Any]().get, said.put)


async def test_an_application_without_authentication_is_refused_unless_that_is_said(engine: Engine) -> None:
    handler, key = QueueHandler(engine), SigningKeys.generate()
    with pytest.raises(UsageError, match="unauthenticated=True"):
        PushApp(handler)
    with pytest.raises(UsageError, match="empty token"):
        PushApp(handler, token="")
    with pytest.raises(UsageError, match="no key"):
        PushApp(handler, keys=[])
    with pytest.raises(UsageError, match="leave one out"):
        PushApp(handler, keys=key, unauthenticated=True)
    with pytest.raises(UsageError, match="leave one out"):
        PushApp(handler, token="s3cret", unauthenticated=True)
    for options in (
        {"keys": key},
        {"keys": [key]},
        {"keys": SigningKeys(key)},
        {"token": "x"},
        {"unauthenticated": True},
    ):
        PushApp(handler, **options)


async def test_the_handler_lives_as_long_as_the_application(engine: Engine) -> None:
    app = PushApp(QueueHandler(engine), unauthenticated=True)
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
    await PushApp(QueueHandler(engine), unauthenticated=True)({"type": "lifespan"}, told.get, said.put)
    assert (await said.get())["type"] == "lifespan.startup.failed"
