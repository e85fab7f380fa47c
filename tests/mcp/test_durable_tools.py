"""A workflow as a tool of the user's own MCP server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
from mcp.client.client import Client
from mcp.server.mcpserver import MCPServer

from perdure import Context, Engine, workflow
from perdure.errors import UsageError
from perdure.mcp import add_workflow
from tests.helpers import eventually


@dataclass
class Item:
    name: str
    count: int = 1


@workflow("mcp.refund.v1")
async def refund(ctx: Context, order: str, items: list[Item], cents: int = 100) -> dict[str, Any]:
    """Refund some items of an order."""
    for item in items:
        ctx.emit("progress", f"refunding {item.name}")
    if cents < 0:
        raise ValueError("nothing to refund")
    if cents > 1000:
        await ctx.receive("approval", str)
    return {"order": order, "names": [item.name for item in items], "cents": cents}


@pytest.fixture
async def engine(tmp_path: Any) -> AsyncIterator[Engine]:
    async with Engine(f"sqlite:///{tmp_path}/a.db", workflows=[refund]) as engine, engine.worker():
        yield engine


ITEMS = [{"name": "chair"}, {"name": "table", "count": 2}]


async def test_a_call_starts_a_run_and_a_repetition_finds_it(engine: Engine) -> None:
    server = MCPServer("shop")
    add_workflow(server, engine, refund, stream="progress")
    async with Client(server) as client:
        [tool] = (await client.list_tools()).tools
        assert (tool.name, tool.description) == ("refund", "Refund some items of an order.")
        assert set(tool.input_schema["required"]) == {"order", "items", "request_key"}
        seen: list[str | None] = []

        async def progress(progress: float, total: float | None, message: str | None) -> None:
            seen.append(message)

        given = {"order": "o1", "items": ITEMS, "request_key": "k1"}
        first = (await client.call_tool("refund", given, progress_callback=progress)).structured_content
        assert first["status"] == "completed"
        assert first["result"] == {"order": "o1", "names": ["chair", "table"], "cents": 100}
        assert seen == ["refunding chair", "refunding table"]
        assert (await client.call_tool("refund", given)).structured_content == first
        other = await client.call_tool("refund", {**given, "order": "o2"})
        assert other.is_error
        another = (await client.call_tool("refund", {**given, "request_key": "k2"})).structured_content
        assert another["run_id"] != first["run_id"]
        assert len((await engine.runs.list()).runs) == 2


async def test_a_long_run_is_named_and_awaited_by_another_call(engine: Engine) -> None:
    server = MCPServer("shop")
    add_workflow(server, engine, refund, name="give_back", key=lambda order, **_: f"refund-{order}", wait="100ms")
    async with Client(server) as client:
        [tool] = (await client.list_tools()).tools
        assert "request_key" not in tool.input_schema["properties"]
        given = {"order": "o1", "items": ITEMS, "cents": 5000}
        found = (await client.call_tool("give_back", given)).structured_content
        assert found == {"run_id": "refund-o1", "status": "running", "result": None}
        await engine.send("refund-o1", "approval", "yes")

        async def is_over() -> bool:
            found = (await client.call_tool("give_back", given)).structured_content
            return bool(found["status"] == "completed")

        await eventually(is_over)
        assert len((await engine.runs.list()).runs) == 1


async def test_a_failed_run_and_wrong_arguments_are_errors_of_the_tool(engine: Engine) -> None:
    server = MCPServer("shop")
    add_workflow(server, engine, refund)
    async with Client(server) as client:
        failed = await client.call_tool("refund", {"order": "o", "items": [], "cents": -1, "request_key": "k"})
        assert failed.is_error
        assert "nothing to refund" in str(failed.content)
        wrong = await client.call_tool("refund", {"order": "o", "items": [{}], "request_key": "k3"})
        assert wrong.is_error
        assert "name" in str(wrong.content)
        assert len((await engine.runs.list()).runs) == 1


async def test_what_cannot_be_a_tool_is_refused(engine: Engine) -> None:
    @workflow("mcp.odd.v1")
    async def odd(ctx: Context, request_key: str) -> None: ...

    server = MCPServer("shop")
    with pytest.raises(UsageError, match="request_key"):
        add_workflow(server, engine, odd)
    with pytest.raises(UsageError, match="workflow"):
        add_workflow(server, engine, "mcp.refund.v1")  # type: ignore[arg-type]
