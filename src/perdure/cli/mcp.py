"""`perdure mcp`: serve tools for coding agents, by the Model Context Protocol."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from typing import TYPE_CHECKING, cast

import click

from perdure.cli.console import logs
from perdure.cli.console.command_groups import Command
from perdure.cli.console.output import Printer
from perdure.cli.console.params import with_output, with_target
from perdure.cli.console.target import engine_at
from perdure.core.access import Role
from perdure.errors import UsageError

if TYPE_CHECKING:
    from perdure.core.redaction import Redaction

_ROLES = click.Choice([role.value for role in Role])


@click.command("mcp", cls=Command, example="perdure mcp sqlite:///shop.db")
@with_target
@click.option("--allow-steering", is_flag=True, help="Tools that start, steer and end runs, too.")
@click.option("--actor", metavar="NAME", help="Name in the audit trail.  [default: mcp:<user>]")
@click.option("--payloads", type=_ROLES, default="viewer", show_default=True, help="Least role that sees payloads.")
@click.option("--redact-key", "keys", multiple=True, metavar="PATTERN", help="Hide values of such keys: '*_token'")
@click.option("--redact-text", "texts", multiple=True, metavar="REGEX", help="Hide matches in payloads and messages.")
@click.option(
    "--max-result", "longest", type=click.IntRange(min=1000), default=30_000, show_default=True, metavar="N",
    help="Most characters of a result.",
)  # fmt: skip
@click.option("--bind", metavar="HOST:PORT", help="Serve streamable HTTP instead of the standard streams.")
@click.option("--host", "hosts", multiple=True, help="Name under which the server is reached.  [default: localhost]")
@click.option("--log-level", type=click.Choice(logs.LEVELS), help="Least severe level to log.")
@with_output
def mcp(
    target: str,
    allow_steering: bool,
    actor: str | None,
    payloads: str,
    keys: tuple[str, ...],
    texts: tuple[str, ...],
    longest: int,
    bind: str | None,
    hosts: tuple[str, ...],
    log_level: str | None,
    output: Printer,
) -> None:
    """Serve tools that inspect and, if allowed, steer runs, for coding agents.

    The agent starts this command and talks to it on the standard streams. With --bind, agents need a token
    (`perdure tokens create`), whose role decides about steering.
    """
    if any(importlib.util.find_spec(name) is None for name in ("mcp", "starlette", "uvicorn")):
        raise UsageError("perdure mcp needs the extra `mcp`: pip install 'perdure[mcp]'")
    from perdure.http import Redaction

    logs.configure(log_level, None, json=output.json)
    if bind is None and hosts:
        raise UsageError("--host is for a server on HTTP, which --bind makes")
    if bind is not None and (allow_steering or actor is not None):
        raise UsageError("with --bind, the token of each caller decides about steering and names the actor")
    redaction = Redaction(payloads=payloads, keys=keys, texts=texts) if keys or texts or payloads != "viewer" else None
    if bind is None:
        asyncio.run(_on_streams(target, allow_steering, redaction, actor, longest))
    else:
        asyncio.run(_on_http(target, bind, hosts, redaction or Redaction(), longest, output))


async def _on_streams(
    target: str, allow_steering: bool, redaction: Redaction | None, actor: str | None, longest: int
) -> None:
    from mcp.server.stdio import stdio_server

    from perdure.mcp import make_server

    for name, stream in (("input", sys.stdin), ("output", sys.stdout)):
        # Python has no object for a stream that is closed when it starts.
        if cast("object", stream) is None:
            raise UsageError(f"perdure mcp talks on the standard streams, and the standard {name} is closed")
    async with engine_at(target) as engine:
        server = make_server(engine, allow_steering=allow_steering, redaction=redaction, actor=actor, longest=longest)
        async with stdio_server() as (read, write):
            await server.run(read, write, server.create_initialization_options())


async def _on_http(
    target: str, bind: str, hosts: tuple[str, ...], redaction: Redaction, longest: int, output: Printer
) -> None:
    from perdure.http import Access
    from perdure.http.access import LOOPBACK_HOSTS
    from perdure.http.server import check_bind, parse_bind
    from perdure.mcp.over_http import PATH, McpApp, make_http_server

    address, port = parse_bind(bind)
    access = Access(hosts=hosts or LOOPBACK_HOSTS)
    async with engine_at(target) as engine:
        app = McpApp(engine, access, redaction, longest)
        await check_bind(engine, access, address)
        url = f"http://{f'[{address}]' if ':' in address else address}:{port}{PATH}"
        output.result({"event": "serving", "url": url}, f"serving {url}")
        try:
            await make_http_server(app, address, port).serve()
        finally:
            await app.close()
