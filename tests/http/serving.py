"""A real server with the HTTP API of an engine, callers of each role, and workflows to talk to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import httpx
from starlette.applications import Starlette

from perdure import Context, Engine, Pending, Retry, activity, activity_info, step, workflow
from perdure.admin import Role
from perdure.http import HttpApp
from perdure.http.server import SignalledServer, server_config


@dataclass
class Order:
    id: str
    cents: int


@step(retry=Retry.never())
def charge(cents: int) -> str:
    if cents < 0:
        raise ValueError("nothing to charge")
    return f"paid {cents}"


@workflow("http.checkout.v1")
async def checkout(ctx: Context, order: Order, note: str = "") -> str:
    return await ctx.step(charge, order.cents) + note


@workflow("http.approval.v1")
async def approval(ctx: Context) -> str:
    ctx.publish("stage", "asked")
    return await ctx.receive("approval", str)


@workflow("http.desk.v1")
async def desk(ctx: Context) -> str:
    question = await ctx.receive_question("quote", int)
    question.reply(question.value * 2)
    return "closed"


@workflow("http.counting.v1")
async def counting(ctx: Context, upto: int, hold: bool = False) -> int:
    for number in range(upto):
        ctx.emit("numbers", number)
    if hold:
        await ctx.receive("go", bool)
        ctx.emit("numbers", upto)
    return upto


@workflow("http.sleeper.v1")
async def sleeper(ctx: Context) -> str:
    await ctx.sleep("30d")
    return "awake"


@workflow("http.family.v1")
async def family(ctx: Context) -> str:
    return await ctx.call(checkout(Order("child", 5)))


@activity("http.mail.v1", retry=Retry.never())
def mail(to: str) -> str:
    raise ConnectionError(f"no route to {to}")


#: Tokens of attempts that wait for their completion, by run.
PERMITS: dict[str, str] = {}


@activity("http.permit.v1", retry=Retry.never())
def permit() -> int:
    info = activity_info()
    PERMITS[info.run_id] = info.token
    return Pending


WORKFLOWS = (checkout, approval, desk, counting, sleeper, family, mail, permit)


@dataclass
class Caller:
    """A client with a role."""

    client: httpx.AsyncClient
    headers: dict[str, str] = field(default_factory=dict)

    async def call(self, method: str, path: str, body: Any = None, **options: Any) -> httpx.Response:
        headers = {**self.headers, **options.pop("headers", {})}
        return await self.client.request(method, f"/api/v1{path}", json=body, headers=headers, **options)

    async def get(self, path: str, **query: Any) -> Any:
        """Read something that is there."""
        answer = await self.call("GET", path, params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def post(self, path: str, body: Any = None, **options: Any) -> httpx.Response:
        return await self.call("POST", path, {} if body is None else body, **options)


@dataclass
class Served:
    """A server, and a caller of each role."""

    engine: Engine
    app: HttpApp
    address: tuple[str, int]
    tokens: dict[Role, str]
    anonymous: Caller
    viewer: Caller
    operator: Caller
    admin: Caller

    @property
    def url(self) -> str:
        return f"http://{self.address[0]}:{self.address[1]}"


@asynccontextmanager
async def running(app: HttpApp | Starlette, root_path: str = "") -> AsyncIterator[tuple[str, int]]:
    """A real server with the application, mounted or not; its host and port."""
    on_stop = app.end_streams if isinstance(app, HttpApp) else lambda: None
    server = SignalledServer(server_config(app, "127.0.0.1", 0, root_path), on_stop)
    server.config.log_level = "critical"
    task = asyncio.ensure_future(server._serve())
    while not server.started:
        assert not task.done(), task
        await asyncio.sleep(0.01)  # the server says nothing when it has begun
    try:
        host, port = server.servers[0].sockets[0].getsockname()[:2]
        yield host, port
    finally:
        server.should_exit = True
        await task


@asynccontextmanager
async def calling(app: HttpApp | Starlette, root_path: str = "") -> AsyncIterator[httpx.AsyncClient]:
    """A client of a real server with the application."""
    async with (
        running(app, root_path) as (host, port),
        httpx.AsyncClient(base_url=f"http://{host}:{port}", trust_env=False, verify=False, timeout=60) as client,
    ):
        yield client


@asynccontextmanager
async def served(engine: Engine, *, work: bool = True, **options: Any) -> AsyncIterator[Served]:
    """A server on an engine, with a worker beside it."""
    async with AsyncExitStack() as stack:
        await engine.open()
        tokens = {role: (await engine.tokens.create(role.value, role)).token for role in Role}
        if work:
            await stack.enter_async_context(engine.worker())
        app = HttpApp(engine, rate=1e6, burst=10**6, **options)
        address = await stack.enter_async_context(running(app))
        url = f"http://{address[0]}:{address[1]}"

        async def caller(**headers: str) -> Caller:
            client = httpx.AsyncClient(base_url=url, trust_env=False, timeout=60, verify=False)
            return Caller(await stack.enter_async_context(client), headers)

        callers = [await caller(Authorization=f"Bearer {tokens[role]}") for role in Role]
        yield Served(engine, app, address, tokens, await caller(), *callers)


def part(text: str) -> str:
    """A part of a path."""
    return quote(text, safe="")
