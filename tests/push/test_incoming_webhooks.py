"""Webhooks of other systems, through a real server, become runs and messages, once for each delivery."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
import uvicorn

from perdure import Context, Engine, Singleton, Status, Watermark, workflow
from perdure.errors import DecodeError, InvalidSignature, UsageError
from perdure.outbox import Webhook
from perdure.push import (
    GitHub,
    IncomingEvent,
    PushApp,
    QueueHandler,
    QueueMessage,
    Send,
    SigningKeys,
    StandardWebhooks,
    Start,
    Stripe,
    WebhookSource,
)
from tests.helpers import eventually
from tests.stage import Stage

KEY = SigningKeys.generate()


class Site:
    """A server with webhooks."""

    def __init__(self, url: str, client: httpx.AsyncClient) -> None:
        self.url = url
        self._client = client

    async def post(self, path: str, body: bytes, headers: Any) -> tuple[int, dict[str, Any]]:
        """Post a webhook; status and answer."""
        answer = await self._client.post(f"{self.url}{path}", content=body, headers=headers)
        return answer.status_code, answer.json()


@workflow("incoming.review.v1")
async def review(ctx: Context, number: int) -> int:
    return number


@workflow("incoming.invoice.v1")
async def invoice(ctx: Context) -> list[str]:
    return [await ctx.receive("paid", str), await ctx.receive("paid", str)]


def github(body: bytes, secret: str = "first", delivery: str | None = "d-1", event: str = "pull_request") -> Any:
    digest = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    headers = {"X-Hub-Signature-256": f"sha256={digest}", "X-GitHub-Event": event}
    return headers if delivery is None else {**headers, "X-GitHub-Delivery": delivery}


def stripe(body: bytes, *secrets: str, at: float | None = None) -> dict[str, str]:
    moment = int(time.time() if at is None else at)
    signed = [hmac.new(one.encode(), b"%d.%s" % (moment, body), hashlib.sha256).hexdigest() for one in secrets]
    return {"Stripe-Signature": ",".join([f"t={moment}", *(f"v1={one}" for one in signed), "v0=00"])}


@asynccontextmanager
async def serving(engine: Engine, webhooks: dict[str, WebhookSource], **options: Any) -> AsyncIterator[Site]:
    """A real server with these webhooks."""
    app = PushApp(options.pop("handler", None) or QueueHandler(engine), webhooks=webhooks, **options)
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="critical", lifespan="on", ws="none")
    server = uvicorn.Server(config)
    running = asyncio.ensure_future(server._serve())
    while not server.started:
        assert not running.done(), running
        await asyncio.sleep(0.01)  # the server says nothing when it has begun
    host, port = server.servers[0].sockets[0].getsockname()
    try:
        async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
            yield Site(f"http://{host}:{port}", client)
    finally:
        server.should_exit = True
        await running


def on_github(event: IncomingEvent) -> Start | None:
    return Start(review(event.data["number"])) if event.type == "pull_request" else None


async def on_stripe(event: IncomingEvent) -> Send | None:
    return Send(event.data["run"], "paid", event.id) if event.type == "invoice.paid" else None


async def test_a_webhook_of_github_starts_one_run_for_each_delivery(stage: Stage) -> None:
    engine = stage.engine(review)
    body = b'{"number": 7}'
    source = GitHub("first", "second", on_event=on_github)
    async with serving(engine, {"/hooks/github": source}) as site, engine.worker():
        status, answer = await site.post("/hooks/github", body, github(body))
        assert (status, answer) == (200, {"outcome": "started", "run_id": "hooks/github/d-1"})
        assert await site.post("/hooks/github", body, github(body, "second")) == (status, answer)
        assert (await site.post("/hooks/github", body, github(body, delivery="d-2")))[0] == 200
        assert await site.post("/hooks/github", body, github(body, event="ping")) == (200, {"outcome": "ignored"})
        assert await (await engine.get("hooks/github/d-1")).result() == 7
        assert (await site.post("/hooks/github", body, github(body)))[0] == 200
    assert len((await engine.runs.list()).runs) == 2


async def test_a_webhook_of_stripe_sends_one_message_for_each_event(stage: Stage) -> None:
    engine = stage.engine(invoice)
    run = await engine.start(invoice(), id="i-1")
    bodies = [json.dumps({"id": f"evt_{n}", "type": "invoice.paid", "run": "i-1"}).encode() for n in (1, 2)]
    async with serving(engine, {"/stripe": Stripe("whsec_a", "whsec_b", on_event=on_stripe)}) as site, engine.worker():
        for body in (bodies[0], *bodies, bodies[0]):
            status, answer = await site.post("/stripe", body, stripe(body, "whsec_b"))
            assert (status, answer["run_id"]) == (200, "i-1")
        assert await run.result() == ["evt_1", "evt_2"]
        status, answer = await site.post("/stripe", bodies[0], stripe(bodies[0], "whsec_old", "whsec_a"))
        assert (status, answer["run_id"]) == (200, "i-1")
        other = b'{"id": "evt_3", "type": "invoice.paid", "run": "i-1"}'
        assert await site.post("/stripe", other, stripe(other, "whsec_a")) == (
            200,
            {"outcome": "finished", "run_id": "i-1"},
        )
        unknown = b'{"id": "evt_4", "type": "invoice.paid", "run": "i-2"}'
        assert (await site.post("/stripe", unknown, stripe(unknown, "whsec_a")))[0] == 404


async def test_the_outbox_of_one_engine_starts_runs_of_another(on_disk: Stage) -> None:
    engine = on_disk.engine(review)
    source = StandardWebhooks(KEY, on_event=lambda event: Start(review(event.data["data"]), id=event.data["id"]))
    async with serving(engine, {"/in": source}) as site:
        sender = Engine("sqlite://", outbox=[Webhook("other", f"{site.url}/in", keys=KEY)])
        async with sender, sender.worker():
            await sender.outbox.publish("tick", 5, id="five")

            async def started() -> int:
                return len((await engine.runs.list()).runs)

            await eventually(started)
            again = await sender.outbox.replay("five")
            await (await sender.get(again[0])).result()
            for delivery in await sender.outbox.deliveries(again[0]):
                await (await sender.get(delivery.id)).result()
    [run] = (await engine.runs.list()).runs
    assert (run.id, run.input) == ("five", '{"number":5}')


async def test_requests_that_are_not_signed_or_no_events_are_refused_and_change_nothing(on_disk: Stage) -> None:
    engine = on_disk.engine(review)
    sources: dict[str, WebhookSource] = {
        "/github": GitHub("first", on_event=on_github),
        "/stripe": Stripe("whsec_a", on_event=on_stripe, tolerance="1m"),
        "/standard": StandardWebhooks(KEY, on_event=on_github),
    }
    body, now = b'{"number": 7, "id": "evt_1"}', time.time()
    valid = github(body)
    twice = [*valid.items(), ("X-Hub-Signature-256", "sha256=00")]
    refused: list[tuple[str, bytes, Any]] = [
        ("/github", body, {}),
        ("/github", body, github(body, "wrong")),
        ("/github", body + b" ", valid),
        ("/github", body, {**valid, "X-Hub-Signature-256": "sha1=00"}),
        ("/github", body, {**valid, "X-Hub-Signature-256": valid["X-Hub-Signature-256"][7:]}),
        ("/github", body, {**valid, "X-Hub-Signature-256": "sha256=" + "0" * 5000}),
        ("/github", body, {**valid, "X-Hub-Signature-256": b"sha256=\xff\xfe"}),
        ("/github", body, twice),
        ("/stripe", body, valid),
        ("/stripe", body, stripe(body, "whsec_b")),
        ("/stripe", body, stripe(body, "whsec_a", at=now - 90)),
        ("/stripe", body, stripe(body, "whsec_a", at=now + 90)),
        ("/stripe", body, {"Stripe-Signature": stripe(body, "whsec_a")["Stripe-Signature"].partition(",")[2]}),
        ("/stripe", body, {"Stripe-Signature": "t=x,v1=00"}),
        ("/stripe", body, {"Stripe-Signature": ",,,=,t"}),
        ("/standard", body, {}),
        ("/standard", body, SigningKeys(SigningKeys.generate()).sign(body)),
    ]
    async with serving(engine, sources, max_body=2000) as site:
        for path, sent, headers in refused:
            status, answer = await site.post(path, sent, headers)
            assert (status, "error" in answer) == (401, True), (path, headers, answer)
        for wrong in (b"", b"no JSON", b"[" * 1500, b"\xff"):
            assert (await site.post("/github", wrong, github(wrong)))[0] == 400, wrong
        for delivery in (None, "", "x" * 300):
            assert (await site.post("/github", body, github(body, delivery=delivery)))[0] == 400
        for wrong in (b"[]", b"{}", b'{"id": 7}'):
            assert (await site.post("/stripe", wrong, stripe(wrong, "whsec_a")))[0] == 400
        large = b'"' + b"x" * 3000 + b'"'
        assert (await site.post("/github", large, github(large)))[0] == 413
        assert (await site.post("/elsewhere", body, github(body)))[0] == 404
    assert (await engine.runs.list()).runs == ()


async def test_a_start_with_an_id_of_its_own_conflicts_only_with_other_deliveries(on_disk: Stage) -> None:
    engine = on_disk.engine(review)
    counted = iter(range(100))
    source = GitHub("first", on_event=lambda event: Start(review(next(counted)), id="pr-1"))
    body = b"{}"
    async with serving(engine, {"/github": source}) as site:
        for _ in range(2):
            assert await site.post("/github", body, github(body)) == (200, {"outcome": "started", "run_id": "pr-1"})
        status, answer = await site.post("/github", body, github(body, delivery="d-2"))
        assert (status, "exists with another input" in answer["error"]) == (409, True)
    [run] = (await engine.runs.list()).runs
    assert run.input == '{"number":0}'


async def test_errors_ask_the_sender_to_try_again(on_disk: Stage) -> None:
    engine = on_disk.engine(review)
    busy = Singleton("one", "reject")
    wrong: Any = "nothing"

    def decide(event: IncomingEvent) -> Any:
        decisions = {
            "busy": Start(review(1), singleton=busy),
            "plain": Start(review(1)),
            "wrong": wrong,
        }
        return decisions[event.type]

    async with serving(engine, {"/github": GitHub("first", on_event=decide)}) as site:

        async def status(event: str, delivery: str) -> int:
            return (await site.post("/github", b"{}", github(b"{}", delivery=delivery, event=event)))[0]

        assert await status("busy", "d-1") == 200
        assert await status("busy", "d-2") == 409
        assert await status("busy", "d-1") == 200
        assert await status("wrong", "d-3") == 503
        assert await status("unknown", "d-4") == 503
        assert await status("plain", "d-5") == 200
        await engine.close()
        assert await status("plain", "d-5") == 503


async def test_a_full_queue_asks_the_sender_to_wait(on_disk: Stage) -> None:
    engine = on_disk.engine(review, watermarks=[Watermark(high=1, low=1, queue="default")])
    body = b'{"number": 1}'
    async with serving(engine, {"/github": GitHub("first", on_event=on_github)}) as site:
        assert (await site.post("/github", body, github(body)))[0] == 200
        status, answer = await site.post("/github", body, github(body, delivery="d-2"))
        assert (status, "error" in answer) == (503, True)


async def test_a_run_that_a_webhook_starts_is_enqueued(on_disk: Stage) -> None:
    enqueued: list[str] = []

    async def enqueue(message: QueueMessage, delay: float) -> None:
        enqueued.append(message.run_id)

    engine, body = on_disk.engine(review), b'{"number": 1}'
    source = GitHub("first", on_event=on_github)
    async with serving(engine, {"/github": source}, handler=QueueHandler(engine, enqueue=enqueue)) as site:
        assert (await site.post("/github", body, github(body)))[0] == 200
        await eventually(lambda: enqueued == ["github/d-1"])


async def test_messages_and_webhooks_share_an_application(on_disk: Stage) -> None:
    engine = on_disk.engine(review)
    body = b'{"number": 1}'
    async with serving(engine, {"/github": GitHub("first", on_event=on_github)}, keys=KEY) as site:
        status, answer = await site.post("/github", body, github(body))
        assert status == 200
        message = json.dumps({"run_id": answer["run_id"], "enqueued_at": time.time_ns() // 1_000_000}).encode()
        assert (await site.post("/", message, github(message)))[0] == 401
        status, answer = await site.post("/", message, SigningKeys(KEY).sign(message))
        assert (status, answer["outcome"]) == (200, "finished")
    assert [run.status for run in (await engine.runs.list()).runs] == [Status.COMPLETED]


def test_the_example_of_github_is_valid() -> None:
    source = GitHub("It's a Secret to Everybody", on_event=on_github)
    digest = "757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
    headers = {"x-hub-signature-256": f"sha256={digest}"}
    source.verify(b"Hello, World!", headers, 0)
    with pytest.raises(InvalidSignature):
        source.verify(b"Hello, World?", headers, 0)
    with pytest.raises(DecodeError):
        source.event(b"Hello, World!", headers, 0)


def test_wrong_sources_are_refused(on_disk: Stage) -> None:
    handler, wrong = QueueHandler(on_disk.engine(review)), b"secret"
    broken: Any = wrong
    for make in (lambda: GitHub(on_event=on_github), lambda: Stripe("", on_event=on_stripe)):
        with pytest.raises(UsageError, match="at least one, and none empty"):
            make()
    with pytest.raises(UsageError, match="none empty") as refused:
        GitHub(broken, on_event=on_github)
    assert "secret'" not in str(refused.value)
    with pytest.raises(UsageError, match="give a function that takes an event"):
        GitHub("first", on_event=broken)
    source = GitHub("first", on_event=on_github)
    assert repr(source) == "<webhooks of github>"
    for webhooks in ({"github": source}, {"/": source}, {"/github": broken}, broken):
        with pytest.raises(UsageError, match="webhooks"):
            PushApp(handler, webhooks=webhooks)
    with pytest.raises(UsageError, match="lets every caller execute runs"):
        PushApp(handler, webhooks={})
    with pytest.raises(UsageError, match="leave one out"):
        PushApp(handler, token="t", unauthenticated=True, webhooks={"/github": source})
