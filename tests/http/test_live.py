"""Server-sent events: streams of runs, and live updates by one poll for all clients."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import httpx
import pytest
from starlette.requests import ClientDisconnect, Request

from perdure.admin import Role
from perdure.http import app as app_module
from perdure.http.api import ServerEvent
from perdure.http.live import OVERLAP, PAGE, TICK
from tests.helpers import eventually
from tests.http.serving import WORKFLOWS, Caller, Served, served
from tests.http.test_runs import start
from tests.stage import Stage


class Reader:
    """Events of a stream, as they come."""

    def __init__(self, lines: AsyncIterator[str]) -> None:
        self._lines = lines

    async def next(self) -> dict[str, Any]:
        """The next event; comments are passed over."""
        found: dict[str, Any] = {}
        async with asyncio.timeout(60):
            async for line in self._lines:
                if not line and found:
                    return found
                name, _, value = line.partition(": ")
                if name == "data":
                    found[name] = json.loads(value)
                elif name:
                    found[name] = value
        raise EOFError

    async def comment(self) -> None:
        """Wait for a sign of life."""
        async with asyncio.timeout(60):
            async for line in self._lines:
                if line.startswith(":"):
                    return


@asynccontextmanager
async def reading(caller: Caller, path: str, **headers: str) -> AsyncIterator[Reader]:
    async with caller.client.stream("GET", f"/api/v1{path}", headers={**caller.headers, **headers}) as answer:
        assert answer.status_code == 200, await answer.aread()
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["cache-control"] == "no-store"
        yield Reader(answer.aiter_lines())


async def test_a_stream_is_followed_to_its_end_and_resumed_by_its_position(site: Served) -> None:
    await start(site, "http.counting.v1", {"upto": 3, "hold": True}, id="c")
    async with reading(site.viewer, "/runs/c/streams/numbers/live") as reader:
        seen = [await reader.next() for _ in range(3)]
        assert [(one["event"], one["id"], one["data"]["value"]) for one in seen] == [
            ("item", "0", 0),
            ("item", "1", 1),
            ("item", "2", 2),
        ]
        await site.operator.post("/runs/c/messages", {"name": "go", "value": True})
        assert (await reader.next())["data"]["value"] == 3
        assert (await reader.next())["event"] == "end"
    async with reading(site.viewer, "/runs/c/streams/numbers/live", **{"Last-Event-ID": "1"}) as reader:
        assert [(await reader.next())["data"].get("value") for _ in range(2)] == [2, 3]
    page = await site.viewer.get("/runs/c/streams/numbers", limit=3)
    assert ([one["value"] for one in page["items"]], page["cursor"]) == ([0, 1, 2], "2")
    rest = await site.viewer.get("/runs/c/streams/numbers", cursor=2)
    assert ([one["value"] for one in rest["items"]], rest["cursor"]) == ([3], None)
    page = await site.viewer.get("/runs/c/streams/numbers", limit=3, order="newest")
    assert ([one["value"] for one in page["items"]], page["cursor"]) == ([3, 2, 1], "1")
    rest = await site.viewer.get("/runs/c/streams/numbers", cursor=1, order="newest")
    assert ([one["value"] for one in rest["items"]], rest["cursor"]) == ([0], None)
    assert (await site.viewer.get("/runs/c/streams/other", order="newest"))["items"] == []
    assert (await site.viewer.call("GET", "/runs/unknown/streams/numbers?order=newest")).status_code == 404


@pytest.mark.parametrize("position", ["x", "-1", "1.5", "9" * 30, "\u0661"])
async def test_a_position_that_is_none_is_refused(local: Served, position: str) -> None:
    await start(local, "http.counting.v1", {"upto": 1}, id="c")
    headers = {"Last-Event-ID": position.encode()}
    answer = await local.viewer.call("GET", "/runs/c/streams/numbers/live", headers=headers)
    assert answer.status_code == 422


async def test_live_updates_name_runs_and_are_resumed_by_their_number(site: Served) -> None:
    async with reading(site.viewer, "/live") as reader:
        await reader.comment()
        await start(site, "http.approval.v1", id="a")
        while (one := await reader.next())["event"] != "event" or one["data"]["kind"] != "created":
            pass
        assert one["data"]["run_id"] == "a"
    await start(site, "http.sleeper.v1", id="b")
    async with reading(site.viewer, "/live", **{"Last-Event-ID": one["id"]}) as reader:
        while (one := await reader.next())["event"] != "event" or one["data"]["run_id"] != "b":
            pass
    async with reading(site.viewer, "/live?run=b&after=0") as reader:
        assert (await reader.next())["data"]["run_id"] == "b"


async def test_all_clients_share_one_poll(site: Served, stage: Stage) -> None:
    polls = 0
    store = stage.store
    assert store is not None
    read = store.events_page

    async def counted(*args: Any, **options: Any) -> Any:
        nonlocal polls
        polls += 1
        return await read(*args, **options)

    async with reading(site.viewer, "/live") as first:
        await first.comment()
        async with asyncio.TaskGroup() as group:
            heard = asyncio.Event()
            ready = 0

            async def follow(role: Caller) -> None:
                nonlocal ready
                async with reading(role, "/live") as reader:
                    await reader.comment()
                    ready += 1
                    await heard.wait()
                    while (await reader.next()).get("data", {}).get("run_id") != "told":
                        pass

            tasks = [group.create_task(follow(site.operator)) for _ in range(15)]
            await eventually(lambda: ready == len(tasks))
            store.events_page = counted  # type: ignore[method-assign] # to count its calls
            began = asyncio.get_running_loop().time()
            heard.set()
            await start(site, "http.approval.v1", id="told")
    # Sixteen clients that poll for themselves would poll sixteen times a tick.
    assert polls <= 4 + 2 * (asyncio.get_running_loop().time() - began) / TICK


async def test_too_many_events_are_a_reset(idle: Served) -> None:
    body = {"type": "http.approval.v1", "inputs": [{}] * (PAGE + OVERLAP)}
    async with reading(idle.viewer, "/live") as reader:
        await reader.comment()
        assert (await idle.operator.post("/runs/batch", body)).status_code == 201
        while (one := await reader.next())["event"] != "reset":
            pass
        newest = (await idle.viewer.get("/events", limit=1))["items"][0]["id"]
        assert one["data"]["last"] <= newest
    async with reading(idle.viewer, "/live?after=0") as reader:
        assert (await reader.next())["event"] == "reset"


async def test_a_caller_has_a_bounded_number_of_streams(on_disk: Stage) -> None:
    async with served(on_disk.engine(*WORKFLOWS), work=False, streams=1) as site:
        async with reading(site.viewer, "/live") as reader:
            await reader.comment()
            refused = await site.viewer.call("GET", "/live")
            assert (refused.status_code, "streams are open" in refused.json()["detail"]) == (429, True)
            async with reading(site.operator, "/live") as other:
                await other.comment()

        async def again() -> bool:
            async with site.viewer.client.stream("GET", "/api/v1/live", headers=site.viewer.headers) as answer:
                return answer.status_code == 200

        await eventually(again)


def followers(site: Served) -> int:
    return len(site.app._hub._clients)


async def test_a_stream_that_is_refused_follows_nothing(on_disk: Stage) -> None:
    async with served(on_disk.engine(*WORKFLOWS), work=False, streams=1) as site:
        async with reading(site.viewer, "/live") as reader:
            await reader.comment()
            for _ in range(3):
                assert (await site.viewer.call("GET", "/live")).status_code == 429
            assert followers(site) == 1
        await eventually(lambda: followers(site) == 0)


async def test_a_stream_whose_client_left_before_it_began_is_not_counted(local: Served) -> None:
    headers = [(b"authorization", f"Bearer {local.tokens[Role.VIEWER]}".encode()), (b"host", b"127.0.0.1")]
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/api/v1/live",
        "raw_path": b"/api/v1/live",
        "query_string": b"",
        "headers": headers,
        "client": ("127.0.0.1", 1),
    }
    sent: list[Any] = []
    messages = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive() -> Any:
        return messages.pop() if messages else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)
        raise OSError("the client left")

    for _ in range(3):
        messages.append({"type": "http.request", "body": b"", "more_body": False})
        # Some versions of the framework raise an error of their own, and some none.
        with suppress(OSError, ClientDisconnect, ExceptionGroup):
            await local.app(scope, receive, send)
    assert (local.app._streams._open, followers(local)) == ({}, 0)


async def test_a_head_request_of_a_stream_has_no_events(local: Served) -> None:
    async with asyncio.timeout(60):
        answer = await local.viewer.call("HEAD", "/live")
        # The connection is free for the next request.
        assert (await local.viewer.get("/session"))["role"] == "viewer"
    assert (answer.status_code, answer.headers["content-type"][:17]) == (200, "text/event-stream")
    await eventually(lambda: local.app._streams._open == {})


async def test_a_stream_ends_when_the_token_is_revoked(site: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_module, "KEEP_ALIVE", 0.05)
    async with reading(site.viewer, "/live") as reader:
        await reader.comment()
        assert (await site.admin.call("DELETE", f"/tokens/{Role.VIEWER.value}")).status_code == 200
        with pytest.raises((EOFError, httpx.RemoteProtocolError)):
            while True:
                await reader.next()


async def test_a_busy_stream_ends_too_when_the_token_is_revoked(local: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_module, "KEEP_ALIVE", 0.05)
    headers = [(b"authorization", f"Bearer {local.tokens[Role.VIEWER]}".encode())]
    request = Request({"type": "http", "method": "GET", "path": "/", "headers": headers, "query_string": b""})
    api = await local.app._api(request, await local.app._known(request))

    async def busy() -> AsyncIterator[ServerEvent | None]:
        while True:
            await asyncio.sleep(0)
            yield ServerEvent(0)

    sent = 0
    async with asyncio.timeout(60):
        async for _ in local.app._kept_alive(api, busy()):
            sent += 1
            if sent == 10:
                await local.admin.call("DELETE", "/tokens/viewer")
    assert sent >= 10


async def test_a_revocation_elsewhere_ends_a_stream_within_seconds(
    local: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app_module, "KEEP_ALIVE", 0.05)
    async with reading(local.viewer, "/live") as reader:
        await reader.comment()
        await local.engine.tokens.revoke("viewer")
        with pytest.raises((EOFError, httpx.RemoteProtocolError)):
            while True:
                await reader.next()
