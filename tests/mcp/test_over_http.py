"""MCP over streamable HTTP, where the caller's token decides, and `perdure mcp` for an engine on a server."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client

from perdure import Engine
from tests.helpers import eventually
from tests.mcp.serving import agent, call, refused
from tests.servers.private import free_port


@asynccontextmanager
async def served(folder: Path, *arguments: str) -> AsyncIterator[str]:
    """A server process; yields its address once it answers, and ends it by a signal in the end."""
    address = f"http://127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "perdure.cli", *arguments, "--bind", address.removeprefix("http://")]
    process = await asyncio.create_subprocess_exec(*command, cwd=folder, stdout=subprocess.DEVNULL)
    try:
        async with httpx.AsyncClient(trust_env=False, verify=False, timeout=60) as client:

            async def answers() -> bool:
                try:
                    return (await client.get(f"{address}/mcp")).status_code < 500
                except httpx.TransportError:
                    return False

            await eventually(answers)
        yield address
        process.terminate()
        assert await asyncio.wait_for(process.wait(), 60) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@asynccontextmanager
async def remote_agent(address: str, token: str) -> AsyncIterator[Client]:
    """A client of a server over HTTP."""
    headers = {"Authorization": f"Bearer {token}"}
    async with (
        create_mcp_http_client(headers=headers) as http,
        Client(streamable_http_client(f"{address}/mcp", http_client=http)) as client,
    ):
        yield client


@pytest.fixture
async def tokens(tmp_path: Path) -> dict[str, str]:
    async with Engine(f"sqlite:///{tmp_path}/shop.db") as engine:
        return {role: (await engine.tokens.create(role, role=role)).token for role in ("viewer", "operator")}


async def test_the_token_of_each_caller_decides_about_tools_and_names_the_actor(
    tmp_path: Path, tokens: dict[str, str]
) -> None:
    async with served(tmp_path, "mcp", "sqlite:///shop.db") as address:
        async with httpx.AsyncClient(trust_env=False, verify=False, timeout=60) as client:
            for headers in ({}, {"Authorization": "Bearer perdure_wrong"}):
                answer = await client.post(f"{address}/mcp", json={}, headers=headers)
                assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
            for headers in ({"Host": "evil.example"}, {"Origin": "https://evil.example"}):
                given = {**headers, "Authorization": f"Bearer {tokens['operator']}"}
                assert (await client.post(f"{address}/mcp", json={}, headers=given)).status_code == 401
        async with remote_agent(address, tokens["viewer"]) as client:
            assert "start_run" not in {tool.name for tool in (await client.list_tools()).tools}
            assert "needs the role operator" in await refused(client, "start_run", type="a")
        async with remote_agent(address, tokens["operator"]) as client:
            assert "start_run" in {tool.name for tool in (await client.list_tools()).tools}
            await call(client, "start_run", type="a", id="r1")
            [event] = (await call(client, "run_events", run_id="r1"))["items"]
            assert event["actor"] == "token:operator"


async def test_an_engine_on_a_server_is_operated_with_its_token(tmp_path: Path, tokens: dict[str, str]) -> None:
    async with served(tmp_path, "serve", "sqlite:///shop.db", "--no-workers", "--redact-key", "card") as address:
        for role in ("viewer", "operator"):
            async with agent(address, "--allow-steering", cwd=tmp_path, PERDURE_TOKEN=tokens[role]) as client:
                names = {tool.name for tool in (await client.list_tools()).tools}
                assert ("start_run" in names) == (role == "operator")
                if role == "viewer":
                    assert "needs the role operator" in await refused(client, "start_run", type="a")
                    continue
                for _ in range(2):
                    await call(client, "start_run", type="a", input={"card": "4111"}, request_id="q1")
                [run] = (await call(client, "list_runs", payloads=True, status=["pending"]))["items"]
                assert run["input"] == {"card": "[redacted]"}
                assert "there is no run 'x/y'" in await refused(client, "show_run", run_id="x/y")
        async with agent(address, cwd=tmp_path, PERDURE_TOKEN=tokens["operator"]) as client:
            assert "start_run" not in {tool.name for tool in (await client.list_tools()).tools}
            assert "--allow-steering" in await refused(client, "start_run", type="a")
