"""Every documented status of an error, of every operation, is an answer that a client can get; and no other is.

`tests/http/test_schemathesis.py` generates requests; these reach what generation does not.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from perdure import Context, Engine, Singleton, workflow
from perdure.admin import Role
from perdure.http import HttpApp
from perdure.http.openapi import errors_of
from perdure.http.routes import PREFIX, ROUTES, Route
from tests.helpers import eventually
from tests.http.serving import PERMITS, WORKFLOWS
from tests.stage import Stage

ROUTED = {route.name: route for route in ROUTES}
BODIES: dict[str, Any] = {
    "start": {"type": "http.approval.v1"},
    "start_many": {"type": "http.counting.v1", "inputs": [{"upto": 1}]},
    "prune": {"older_than": "1h"},
    "unserved": {"ids": []},
    "updated": {"ids": []},
    "send": {"name": "approval"},
    "ask": {"name": "quote", "wait": 0},
    "broadcast": {"name": "n", "correlation": "c"},
    "start_bulk": {"action": "cancel", "ids": ["done"]},
    "preview_bulk": {"ids": ["done"]},
    "create_schedule": {"type": "http.approval.v1", "timing": {"every": "1h"}},
    "set_priority": {"priority": 7},
    "preview_backfill": {"start": "2026-01-01T00:00:00Z", "end": "2026-01-01T02:00:00Z"},
    "backfill_schedule": {"start": "2026-01-01T00:00:00Z", "end": "2026-01-01T02:00:00Z"},
    "set_queue_watermark": {"high": 5},
    "set_type_watermark": {"high": 5},
    "set_limit": {"concurrency": 1},
    "retry_dead_letters": {"ids": ["none"]},
    "discard_dead_letters": {"ids": ["none"]},
    "prune_dead_letters": {"older_than": "1h"},
    "prune_events": {"older_than": "1h"},
    "create_token": {"name": "other"},
    "log_in": {"token": "perdure_wrong"},
}
#: Values of the parts of a path that nothing has, and that nothing can have.
UNKNOWN = {"number": "0"}
IMPOSSIBLE = {"number": "x"}
MOST_BYTES = 100_000
EVIL = {"Origin": "https://evil.example"}


def path_of(route: Route, values: dict[str, str], default: str) -> str:
    return PREFIX + re.sub(r"\{(\w+)\}", lambda name: values.get(name[1], default), route.path)


@asynccontextmanager
async def client_of(app: HttpApp, token: str) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the application, without a network."""
    transport = httpx.ASGITransport(app=app)
    headers = {"Authorization": f"Bearer {token}"}
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers) as client:
        yield client


class Collector:
    """Makes requests of the application, and keeps the statuses of each operation."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client
        self.seen: dict[str, set[int]] = {name: set() for name in ROUTED}

    async def ask(
        self, route: Route, values: dict[str, str] | None = None, body: Any = ..., **options: Any
    ) -> httpx.Response:
        """Make one request; its path has `values`, or names that nothing has."""
        content = BODIES.get(route.name, {}) if body is ... else body
        if route.types()[1] is not None and "content" not in options:
            options["json"] = content
        query = options.pop("query", "")
        path = path_of(route, UNKNOWN if values is None else values, options.pop("default", "nothing"))
        answer = await self._client.request(route.method, path + query, **options)
        self.seen[route.name].add(answer.status_code)
        return answer


@workflow("http.alone.v1", singleton=Singleton("alone", "reject"))
async def alone(ctx: Context) -> str:
    return await ctx.receive("end", str)


STEERING = (
    "send", "ask", "cancel", "terminate", "pause", "resume", "evict", "wake", "retry", "delete", "purge", "undelete",
)  # fmt: skip
#: Requests that contradict the state of things: operation, values of the path, body.
CONTRADICTIONS: tuple[tuple[str, dict[str, str], Any], ...] = (
    ("start", {}, {"type": "http.sleeper.v1", "id": "done"}),
    ("start_many", {}, {"type": "http.sleeper.v1", "inputs": [{}], "ids": ["done"]}),
    ("fork", {"run_id": "done"}, {"id": "asleep"}),
    ("create_schedule", {"schedule_id": "nightly"}, {"type": "http.sleeper.v1", "timing": {"every": "2h"}}),
    ("create_token", {}, {"name": "admin"}),
    # The run has the id of an event.
    ("start", {}, {"type": "http.sleeper.v1", "id": "sticky:taken"}),
    ("emit_sticky_event", {"name": "taken"}, {"value": 1}),
    ("publish_event", {}, {"type": "order.paid", "id": "paid-1"}),
    ("publish_event", {}, {"type": "order.paid", "id": "paid-1", "data": 2}),
    ("start_bulk", {}, {"action": "cancel", "ids": ["done"], "id": "done"}),
    *((name, {"run_id": run_id}, ...) for name in STEERING for run_id in ("done", "asleep", "failed", "deleted")),
    *((name, {"run_id": "odd", "number": "0"}, ...) for name in ("deliver", "drop")),
    ("change_schedule", {"schedule_id": "none"}, {"jitter": "1s"}),
    ("trigger_schedule", {"schedule_id": "alone"}, ...),
    ("trigger_schedule", {"schedule_id": "alone"}, ...),
)


async def _furnish(engine: Engine, admin: Collector) -> None:
    for run_id, type, input in (
        ("done", "http.checkout.v1", {"order": {"id": "o", "cents": 1}}),
        ("failed", "http.checkout.v1", {"order": {"id": "o", "cents": -1}}),
        ("deleted", "http.counting.v1", {"upto": 1}),
        ("asleep", "http.sleeper.v1", {}),
        ("odd", "http.approval.v1", {}),
        ("permitted", "http.permit.v1", {}),
    ):
        await admin.ask(ROUTED["start"], body={"type": type, "id": run_id, "input": input})
    # Not a text, so that it is set aside.
    await admin.ask(ROUTED["send"], {"run_id": "odd"}, {"name": "approval", "value": 5})
    async with engine.worker():

        async def ended() -> bool:
            found = {run.id: run.status for run in (await engine.runs.list(limit=50)).runs}
            return all(found[one].finished for one in ("done", "failed", "deleted"))

        async def set_aside() -> Any:
            return (await admin.ask(ROUTED["set_aside"], {"run_id": "odd"})).json()["items"]

        await eventually(ended)
        [message] = await eventually(set_aside)
        assert message["number"] == 0
        await eventually(lambda: "permitted" in PERMITS)
    await admin.ask(ROUTED["complete_activity"], {"token": PERMITS["permitted"]}, {"value": 1})
    for name in ("complete_activity", "fail_activity", "beat_activity"):
        body = {"value": 2} if name == "complete_activity" else {}
        await admin.ask(ROUTED[name], {"token": PERMITS["permitted"]}, body)
    await admin.ask(ROUTED["terminate"], {"run_id": "odd"})
    await admin.ask(ROUTED["delete"], {"run_id": "deleted"})
    await admin.ask(ROUTED["create_schedule"], {"schedule_id": "nightly"})
    alone = {"type": "http.alone.v1", "timing": {"every": "1h"}}
    assert (await admin.ask(ROUTED["create_schedule"], {"schedule_id": "alone"}, alone)).status_code == 200


async def _general(one: Collector, route: Route) -> None:
    """Requests that are refused whatever they are for."""
    has_body = route.types()[1] is not None
    await one.ask(route, headers={"Host": "evil.example"})
    await one.ask(route, headers={"Authorization": ""})
    await one.ask(route, headers=EVIL)
    await one.ask(route, query="?nonsense=1")
    await one.ask(route, default="x" * 2000)
    await one.ask(route, IMPOSSIBLE)
    await one.ask(route)
    if has_body:
        json = {"Content-Type": "application/json"}
        await one.ask(route, content=b"{", headers=json)
        await one.ask(route, content=b"[]", headers=json)
        await one.ask(route, content=b"{}", headers={"Content-Type": "text/plain"})
        await one.ask(route, content=b" " * (MOST_BYTES + 1), headers=json)


async def test_the_document_has_the_errors_of_every_operation_and_no_others(on_disk: Stage) -> None:
    engine = on_disk.engine(*WORKFLOWS, alone)
    await engine.open()
    token = (await engine.tokens.create("admin", Role.ADMIN)).token
    app = HttpApp(engine, rate=1e6, burst=10**6, max_body=MOST_BYTES, longest_wait=0.05)
    slow = HttpApp(engine, rate=1e-6, burst=1)
    routes = [route for route in ROUTES if not route.streams]
    async with client_of(app, token) as client, client_of(slow, token) as hurried:
        one, many = Collector(client), Collector(hurried)
        await _furnish(engine, one)
        for route in routes:
            await _general(one, route)
            await many.ask(route)
        await many.ask(routes[0])
        for name, values, body in CONTRADICTIONS:
            await one.ask(ROUTED[name], values, body)
        await engine.close()
        for route in routes:
            await one.ask(route)
        await app.close()
        await slow.close()
    wrong: dict[str, tuple[set[int], set[int]]] = {}
    for route in routes:
        seen = {status for status in one.seen[route.name] | many.seen[route.name] if status >= 400}
        documented = errors_of(route)
        if seen != documented:
            wrong[f"{route.method} {route.path} {route.name}"] = documented - seen, seen - documented

    assert wrong == {}
