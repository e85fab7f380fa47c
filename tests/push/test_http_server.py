"""The application behind a real server, and bodies and headers that no client of ours would send."""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx
import uvicorn

from perdure import Context, Engine, Status, workflow
from perdure.push import PushApp, QueueHandler, SigningKeys
from tests.stage import Stage

WHOLE = bool(os.environ.get("PERDURE_PROVE"))
REQUESTS = 20_000 if WHOLE else 400
SOCKETS = 2_000 if WHOLE else 60

KEY = SigningKeys.generate()


@workflow("push.served.v1")
async def served(ctx: Context, name: str) -> str:
    return await ctx.step(greet, name)


def greet(name: str) -> str:
    return f"hello {name}"


@workflow("push.waiting.v1")
async def waiting(ctx: Context) -> str:
    return await ctx.receive("go", str)


def message(run_id: str, **more: object) -> dict[str, object]:
    return {"run_id": run_id, "retry_count": 0, "enqueued_at": time.time_ns() // 1_000_000, **more}


@asynccontextmanager
async def serving(app: PushApp) -> AsyncIterator[tuple[str, int]]:
    """A real server with the application; its host and port."""
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="critical", lifespan="on", ws="none")
    server = uvicorn.Server(config)
    serving = asyncio.ensure_future(server._serve())
    while not server.started:
        assert not serving.done(), serving
        await asyncio.sleep(0.01)  # the server says nothing when it has begun
    try:
        yield server.servers[0].sockets[0].getsockname()
    finally:
        server.should_exit = True
        await serving


async def test_a_signed_message_goes_through_a_server_to_its_run(stage: Stage) -> None:
    engine = stage.engine(served)
    run = await engine.start(served("you"))
    async with (
        serving(PushApp(QueueHandler(engine), keys=KEY)) as (host, port),
        httpx.AsyncClient(trust_env=False, timeout=60) as client,
    ):
        url, body = f"http://{host}:{port}/", json.dumps(message(run.id)).encode()
        assert (await client.post(url, content=body)).status_code == 401
        assert await run.status() is Status.PENDING
        answer = await client.post(url, content=body, headers=SigningKeys(KEY).sign(body))
        assert (answer.status_code, answer.json()["outcome"]) == (200, "finished")
    assert await run.result() == "hello you"


async def ask(host: str, port: int, request: bytes, *, end: bool = True) -> bytes:
    """Send bytes, and read what the server answers until it closes the connection."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(request)
        if end:
            writer.write_eof()
        return await reader.read()
    except ConnectionError:
        # The server had answered and closed before it had read everything.
        return b""
    finally:
        writer.close()


async def test_a_slow_or_endless_body_ends_with_an_answer(on_disk: Stage) -> None:
    app = PushApp(QueueHandler(on_disk.engine(served)), token="s3cret", body_timeout=0.2)
    head = b"POST / HTTP/1.1\r\nHost: push\r\nAuthorization: Bearer s3cret\r\n"
    async with asyncio.timeout(60), serving(app) as (host, port):
        never = await ask(host, port, head + b"Content-Length: 10\r\n\r\n{", end=False)
        assert never.startswith(b"HTTP/1.1 408 ")
        chunked = await ask(host, port, head + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n", end=False)
        assert chunked.startswith(b"HTTP/1.1 408 ")
        large = (
            head + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n" + b"10000\r\n%s\r\n" % (b"x" * 65536) * 40
        )
        assert (await ask(host, port, large + b"0\r\n\r\n")).partition(b"\r\n")[0] in (b"HTTP/1.1 413 ", b"")
        lies = await ask(host, port, head + b"Connection: close\r\nContent-Length: 99999999999999999999\r\n\r\n")
        assert lies.startswith(b"HTTP/1.1 413 ")


class Fuzz:
    """Random requests: mutations of good ones, and things that are none."""

    def __init__(self, random: random.Random, ids: Sequence[str]) -> None:
        self.random = random
        self.ids = ids

    def body(self) -> bytes:
        pick = self.random.choice
        match self.random.randrange(8):
            case 0:
                return self.random.randbytes(self.random.randrange(200))
            case 1:
                return pick([b"[", b'{"run_id":', b'[{"a":', b'"', b"\xff\xfe"]) * self.random.choice(
                    [1, 50, 2000, 40_000]
                )
            case 2:
                text = json.dumps([self.message() for _ in range(self.random.randrange(4))])
                return text.encode(pick(["utf-8", "utf-16", "utf-32", "utf-8-sig"]))
            case 3:
                return self.mutated(json.dumps([self.message()]).encode())
            case _:
                return self.mutated(json.dumps(self.message()).encode())

    def message(self) -> dict[str, Any]:
        pick = self.random.choice
        odd: list[Any] = [
            0,
            -1,
            1.5,
            10**12,
            10**30,
            2**53,
            1e308,
            True,
            None,
            "",
            "x" * 300,
            "\ud800",
            "\0",
            [],
            {},
            [[]],
        ]
        good: dict[str, Any] = {
            "run_id": pick(self.ids),
            "retry_count": pick([0, 3, 10, 11, 999]),
            "enqueued_at": pick([0, 1]),
        }
        for _ in range(self.random.randrange(3)):
            names = ["run_id", "executionId", "retry_count", "retryCount", "enqueued_at", "enqueuedAt", "authorization"]
            good[pick([*names, "stepIndex", "generation", "more", "\ud800"])] = pick(odd)
        return good

    def mutated(self, body: bytes) -> bytes:
        changed = bytearray(body)
        for _ in range(self.random.choice([0, 0, 0, 1, 2])):
            at = self.random.randrange(len(changed))
            changed[at : at + self.random.randrange(3)] = self.random.randbytes(self.random.randrange(3))
        return bytes(changed)

    def headers(self, body: bytes) -> list[tuple[bytes, bytes]]:
        pick = self.random.choice
        signed = SigningKeys(KEY if self.random.random() < 0.9 else SigningKeys.generate()).sign(body)
        headers = [(name.encode(), value.encode()) for name, value in signed.items()]
        if self.random.random() < 0.3:
            names = [b"webhook-id", b"webhook-timestamp", b"webhook-signature", b"content-length", b"content-encoding"]
            name = pick([*names, b"content-type", b"authorization", b"\xff"])
            value = pick(
                [b"", b"0", b"-1", b"9" * 5000, b"gzip", b"v1,", b"\xff\xfe", b"v1,AAAA " * 3, str(len(body)).encode()]
            )
            if self.random.random() < 0.5:
                headers = [pair for pair in headers if pair[0] != name]
            headers.insert(self.random.randrange(len(headers) + 1), (name, value))
        return headers

    def parts(self, body: bytes) -> list[bytes]:
        if self.random.random() < 0.7 or not body:
            return [body]
        at = self.random.randrange(len(body))
        return [body[:at], b"", body[at:]]


async def post(app: PushApp, headers: object, parts: list[bytes], path: str) -> int:
    left, said = list(parts), list[Any]()

    async def receive() -> dict[str, Any]:
        if not left:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}

    async def send(event: Any) -> None:
        said.append(event)

    await app({"type": "http", "method": "POST", "path": path, "headers": headers}, receive, send)
    json.loads(said[1]["body"])
    return int(said[0]["status"])


async def unharmed(engine: Engine, ids: Sequence[str]) -> None:
    for id in ids:
        status = await (await engine.get(id)).status()
        assert status in {Status.PENDING, Status.WAITING, Status.COMPLETED}, (id, status)


async def test_no_body_and_no_header_leads_to_an_error_or_fails_a_run(on_disk: Stage) -> None:
    engine = on_disk.engine(served, waiting)
    ids = [(await engine.start(call)).id for call in (served("a"), served("b"), waiting(), waiting())]
    fuzz = Fuzz(random.Random(7), [*ids, "missing"])
    seen: dict[int, int] = {}
    async with QueueHandler(engine) as handler:
        app = PushApp(handler, keys=KEY)
        for number in range(REQUESTS):
            body = fuzz.body()
            path = "/due" if number % 100 == 99 else "/"
            status = await post(app, fuzz.headers(body), fuzz.parts(body), path)
            assert status in {200, 400, 401, 413, 415, 503}, (status, body[:200])
            seen[status] = seen.get(status, 0) + 1
    # Each kind of answer was met, so the requests are not all refused for the same reason.
    assert {200, 400, 401, 413, 503} <= seen.keys(), seen
    await unharmed(engine, ids)


async def test_no_bytes_on_a_connection_lead_to_an_error_or_fail_a_run(on_disk: Stage) -> None:
    engine = on_disk.engine(served, waiting)
    ids = [(await engine.start(call)).id for call in (served("a"), waiting())]
    fuzz = Fuzz(random.Random(8), [*ids, "missing"])
    async with serving(PushApp(QueueHandler(engine), keys=KEY, body_timeout=5)) as (host, port):
        for _ in range(SOCKETS):
            body = fuzz.body()
            lines = [b"%s: %s\r\n" % pair for pair in fuzz.headers(body)]
            if not any(line.startswith(b"content-length") for line in lines):
                lines.append(b"content-length: %d\r\n" % len(body))
            head = b"POST / HTTP/1.1\r\nhost: push\r\nconnection: close\r\n"
            answer = await ask(host, port, head + b"".join(lines) + b"\r\n" + body)
            assert not answer.startswith(b"HTTP/1.1 500"), (answer, lines, body[:200])
    await unharmed(engine, ids)
