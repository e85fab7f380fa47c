"""A webhook and the answers of its receiver."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn

from perdure import Retry, Status
from perdure.errors import InvalidSignature, UsageError
from perdure.outbox import CloudEvent, Webhook
from perdure.push import SigningKeys
from perdure.push.outgoing_webhooks import message_id
from tests.helpers import eventually
from tests.stage import Stage

KEY = SigningKeys.generate()
QUICK = Retry.fixed("1ms", attempts=3)


class Receiver:
    """An application that answers with the given statuses, the last one from then on."""

    def __init__(self, *statuses: int, headers: list[tuple[bytes, bytes]] | None = None) -> None:
        self.statuses = list(statuses) or [200]
        self.headers = headers or []
        self.got: list[tuple[str, list[tuple[bytes, bytes]], bytes]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http"
        body = b""
        while True:
            part = await receive()
            body += part.get("body", b"")
            if not part.get("more_body"):
                break
        self.got.append((scope["path"], scope["headers"], body))
        status = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
        await send({"type": "http.response.start", "status": status, "headers": self.headers})
        await send({"type": "http.response.body", "body": b"an answer"})


@asynccontextmanager
async def receiving(app: Receiver) -> AsyncIterator[str]:
    """A real server; its URL."""
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="critical", lifespan="off"))
    serving = asyncio.ensure_future(server._serve())
    while not server.started:
        assert not serving.done(), serving
        await asyncio.sleep(0.01)  # the server says nothing when it has begun
    try:
        host, port = server.servers[0].sockets[0].getsockname()
        yield f"http://{host}:{port}"
    finally:
        server.should_exit = True
        await serving


async def delivered(stage: Stage, app: Receiver, **options: Any) -> tuple[CloudEvent, Any]:
    """Publish one event for a receiver; the event and the run of its delivery, when that has ended."""
    async with receiving(app) as url:
        hook = Webhook("hook", f"{url}/path?x=1", **{"keys": KEY, "retry": QUICK, **options})
        engine = stage.engine(outbox=[hook])
        event_id = await engine.outbox.publish("order.paid", {"order": 17}, subject="17", key="a")
        async with engine.worker():

            async def ended() -> Any:
                runs = await engine.outbox.deliveries(event_id)
                return runs if runs and runs[0].status.finished else None

            [run] = await eventually(ended)
        return (await engine.outbox.get(event_id)).event, run


async def test_a_request_is_a_signed_cloudevent_in_structured_mode(on_disk: Stage) -> None:
    app = Receiver(204)
    event, run = await delivered(on_disk, app, headers={"x-tenant": "acme"})
    assert run.status is Status.COMPLETED
    [(path, headers, body)] = app.got
    assert path == "/path"
    SigningKeys(KEY).verify(body, headers)
    with pytest.raises(InvalidSignature):
        SigningKeys(SigningKeys.generate()).verify(body, headers)
    found = dict(headers)
    assert found[b"content-type"] == b"application/cloudevents+json; charset=utf-8"
    assert found[b"x-tenant"] == b"acme"
    assert found[b"webhook-id"].decode() == message_id(event)
    assert event.time is not None
    assert json.loads(body) == {
        "specversion": "1.0",
        "id": event.id,
        "type": "order.paid",
        "source": "perdure",
        "subject": "17",
        "time": event.time.isoformat().replace("+00:00", "Z"),
        "partitionkey": "a",
        "datacontenttype": "application/json",
        "data": {"order": 17},
    }


async def test_a_key_is_rotated_without_a_gap(on_disk: Stage) -> None:
    new, app = SigningKeys.generate(), Receiver()
    await delivered(on_disk, app, keys=[KEY, new])
    [(_, headers, body)] = app.got
    for key in (KEY, new):
        SigningKeys(key).verify(body, headers)


async def test_answers_that_are_no_success_are_retried_with_the_same_id(on_disk: Stage) -> None:
    app = Receiver(500, 404, 200)
    _, run = await delivered(on_disk, app)
    assert (run.status, run.attempt) == (Status.COMPLETED, 3)
    assert len({dict(headers)[b"webhook-id"] for _, headers, _ in app.got}) == 1
    assert len({body for _, _, body in app.got}) == 1


@pytest.mark.parametrize("status", [302, 401, 503])
async def test_a_delivery_that_never_succeeds_is_a_dead_letter(on_disk: Stage, status: int) -> None:
    app = Receiver(status, headers=[(b"location", b"/elsewhere")])
    _, run = await delivered(on_disk, app)
    assert (run.status, len(app.got)) == (Status.FAILED, 3)
    assert {path for path, _, _ in app.got} == {"/path"}
    assert f"with status {status}" in run.error
    assert "Undeliverable" in run.error


async def test_a_receiver_that_is_gone_gets_no_second_request(on_disk: Stage) -> None:
    app = Receiver(410)
    _, run = await delivered(on_disk, app)
    assert (run.status, len(app.got)) == (Status.FAILED, 1)
    assert "wants no more events" in run.error


async def test_a_pause_that_the_receiver_asks_for_uses_up_no_attempt(on_disk: Stage) -> None:
    app, begun = Receiver(429, 429, 200, headers=[(b"retry-after", b"0")]), time.monotonic()
    _, run = await delivered(on_disk, app, retry=Retry.never())
    assert (run.status, len(app.got)) == (Status.COMPLETED, 3)
    assert time.monotonic() - begun >= 2, "a receiver that asks for no pause gets a short one"


async def test_a_receiver_that_never_ends_its_answer_is_given_up(on_disk: Stage) -> None:
    class Endless(Receiver):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            for _ in range(60):
                await send({"type": "http.response.body", "body": b"x", "more_body": True})
                await asyncio.sleep(0.05)

    _, run = await delivered(on_disk, Endless(), timeout="1s", retry=Retry.never())
    assert run.status is Status.FAILED
    assert "TimeoutError" in run.error


async def test_a_receiver_that_cannot_be_reached_is_an_error_of_the_attempt(on_disk: Stage) -> None:
    async with receiving(Receiver()) as url:
        pass
    engine = on_disk.engine(outbox=[Webhook("hook", url, keys=KEY, retry=QUICK)])
    event_id = await engine.outbox.publish("order.paid")

    async def dead() -> bool:
        runs = await engine.outbox.deliveries(event_id)
        return bool(runs) and runs[0].status is Status.FAILED

    async with engine.worker():
        await eventually(dead)
        [letter] = (await engine.dead_letters.list(type="perdure.delivery.hook")).letters
        assert "ConnectError" in letter.errors[-1].error.type


def test_wrong_webhooks_are_refused_and_show_no_secret() -> None:
    wrong: Any = None
    with pytest.raises(UsageError, match="a webhook is signed"):
        Webhook("hook", "https://example.com", keys=wrong)
    for url in ("ftp://example.com", "example.com", "https://", "http://[", wrong, "https://user:secret@"):
        with pytest.raises(UsageError, match="the url of a webhook") as refused:
            Webhook("hook", url, keys=KEY)
        assert "secret" not in str(refused.value)
    for headers in ({"x": 1}, {1: "x"}, ["x"], {"x": "secret\xff"}):
        with pytest.raises(UsageError, match="headers of a webhook") as refused:
            Webhook("hook", "https://example.com", keys=KEY, headers=headers)  # type: ignore[arg-type] # that is the point
        assert "secret" not in str(refused.value)
    assert repr(Webhook("hook", "https://user:secret@example.com", keys=KEY)) == "<webhook hook>"
