"""Real MCP clients of real `perdure mcp` processes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

#: An application of a user's, in the working directory of workers.
SHOP = """
from perdure import Context, Engine, step, workflow

@step(name="charge")
async def charge(cents: int) -> str:
    import asyncio
    print("charging", flush=True)
    await asyncio.sleep(600 if cents == 13 else 0)
    return f"paid {cents}"


@workflow("shop.order.v1")
async def order(ctx: Context, cents: int) -> str:
    receipt = await ctx.step(charge, cents)
    answer = await ctx.receive("approval", str)
    return f"{receipt}, {answer}"


engine = Engine("sqlite:///shop.db", workflows=[order])
"""


@asynccontextmanager
async def agent(target: str, *options: str, cwd: Path, **environment: str) -> AsyncIterator[Client]:
    """A client of a server process on its standard streams."""
    command = StdioServerParameters(
        command=sys.executable, args=["-m", "perdure.cli", "mcp", target, *options], cwd=cwd, env=environment or None
    )
    async with Client(stdio_client(command)) as client:
        yield client


@contextmanager
def worker(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A worker process of the shop; its output is a pipe. It is killed at the end."""
    command = [sys.executable, "-m", "perdure.cli", "worker", "shop:engine", "--lease", "5s"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def read_until(process: subprocess.Popen[str], text: str) -> None:
    """Read the output of a process until a line has a text."""
    assert process.stdout is not None
    assert any(text in line for line in process.stdout)


async def call(client: Client, tool: str, **arguments: Any) -> Any:
    """Call a tool and return the data of its result."""
    found = await client.call_tool(tool, arguments)
    text = json.loads(text_of(found))
    assert not found.is_error, text
    return text["data"]


async def refused(client: Client, tool: str, **arguments: Any) -> str:
    """Call a tool that refuses, and return the reason."""
    found = await client.call_tool(tool, arguments)
    assert found.is_error, text_of(found)
    detail: str = json.loads(text_of(found))["data"]["detail"]
    return detail


def text_of(result: Any) -> str:
    """The text of a result."""
    [content] = result.content
    text: str = content.text
    return text
