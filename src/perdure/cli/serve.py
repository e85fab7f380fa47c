"""`perdure serve`: serve the HTTP API and the dashboard."""

from __future__ import annotations

import asyncio
import importlib.util
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import click

from perdure.cli.console import logs
from perdure.cli.console.command_groups import Command
from perdure.cli.console.output import Printer
from perdure.cli.console.params import with_output, with_target
from perdure.cli.console.target import engine_at
from perdure.core.access import Role
from perdure.errors import UsageError
from perdure.store.url import shown

if TYPE_CHECKING:
    from collections.abc import Callable

    from perdure.client.engine import Engine
    from perdure.http import Access, HttpApp

_ROLES = click.Choice([role.value for role in Role])


@click.command("serve", cls=Command, example="perdure serve sqlite:///shop.db --bind 127.0.0.1:8470")
@with_target
@click.option("--bind", metavar="HOST:PORT", help="Address to listen on.  [default: 127.0.0.1:8470]")
@click.option("--port", type=click.IntRange(0, 65535), help="Port on this machine: --bind 127.0.0.1:PORT.")
@click.option("--host", "hosts", multiple=True, help="Name under which the server is reached.  [default: localhost]")
@click.option("--origin", "origins", multiple=True, help="Other site whose pages may call: https://app.example.com")
@click.option("--proxy", "proxies", multiple=True, help="Address or network of a trusted reverse proxy: 10.0.0.0/8")
@click.option("--beside", multiple=True, metavar="NAME=URL", help="Serve another engine, under /NAME/, too.")
@click.option(
    "--name", default="main", show_default=True, help="Name of the first engine; with --beside, under /NAME/."
)
@click.option("--root-path", default="", metavar="PATH", help="Path under which a proxy serves it, such as /perdure")
@click.option("--user-header", metavar="NAME", help="Header of a trusted proxy that names the user.")
@click.option("--groups-header", default="x-forwarded-groups", show_default=True, help="Header with the user's groups.")
@click.option("--group", "groups", multiple=True, metavar="GROUP=ROLE", help="Role of a group of the proxy's users.")
@click.option("--anonymous", type=_ROLES, help="Role of callers without credentials; on loopback only.")
@click.option("--payloads", type=_ROLES, default="viewer", show_default=True, help="Least role that sees payloads.")
@click.option("--redact-key", "keys", multiple=True, metavar="PATTERN", help="Hide values of such keys: '*_token'")
@click.option("--redact-text", "texts", multiple=True, metavar="REGEX", help="Hide matches in payloads and messages.")
@click.option("--workers/--no-workers", "needs_workers", default=True, help="Not ready without a worker.")
@click.option("--log-level", type=click.Choice(logs.LEVELS), help="Least severe level to log.")
@with_output
def serve(
    target: str,
    bind: str | None,
    port: int | None,
    hosts: tuple[str, ...],
    origins: tuple[str, ...],
    proxies: tuple[str, ...],
    beside: tuple[str, ...],
    name: str,
    root_path: str,
    user_header: str | None,
    groups_header: str,
    groups: tuple[str, ...],
    anonymous: str | None,
    payloads: str,
    keys: tuple[str, ...],
    texts: tuple[str, ...],
    needs_workers: bool,
    log_level: str | None,
    output: Printer,
) -> None:
    """Serve the HTTP API and the dashboard of a database until SIGTERM or SIGINT.

    Callers need a token: `perdure tokens create`. Other machines reach the server only if --bind says so.
    """
    if any(importlib.util.find_spec(name) is None for name in ("starlette", "uvicorn", "jinja2")):
        raise UsageError("perdure serve needs the extra `dashboard`: pip install 'perdure[dashboard]'")
    from perdure.dashboard import Dashboard
    from perdure.http import Access, HttpApp, ProxyLogin, Redaction
    from perdure.http.access import LOOPBACK_HOSTS
    from perdure.http.server import PORT, parse_bind

    if bind is not None and port is not None:
        raise UsageError("--port is short for --bind 127.0.0.1:PORT; give one of the two")
    address, port = parse_bind(f"127.0.0.1:{PORT if port is None else port}" if bind is None else bind)
    access = Access(
        hosts=hosts or LOOPBACK_HOSTS,
        origins=origins,
        proxies=proxies,
        login=ProxyLogin(user=user_header.lower(), groups=groups_header.lower(), roles=_roles(groups))
        if user_header
        else None,
        anonymous=anonymous,
    )
    redaction = Redaction(payloads=payloads, keys=keys, texts=texts)
    logs.configure(log_level, None, json=output.json)

    root = root_path.rstrip("/")
    targets = {name: target, **_neighbours(beside)}
    if len(targets) <= len(beside):
        raise UsageError("each engine of --beside needs a name of its own, other than --name")

    def app_of(engine: Engine, own: str) -> HttpApp:
        others = {one: f"{root}/{one}/" for one in targets if one != own}
        pages = Dashboard(name=own if others else "", neighbours=others)
        return HttpApp(engine, access=access, redaction=redaction, needs_workers=needs_workers, pages=pages)

    asyncio.run(_serve(targets, app_of, access, (address, port, root), output))


async def _serve(
    targets: dict[str, str],
    app_of: Callable[[Engine, str], HttpApp],
    access: Access,
    place: tuple[str, int, str],
    output: Printer,
) -> None:
    """Serve engines until a signal: one at the root, several each under its name."""
    from perdure.http import SideBySide
    from perdure.http.server import check_bind, make_server

    address, port, root = place
    async with AsyncExitStack() as stack:
        apps: dict[str, HttpApp] = {}
        databases: dict[str, str] = {}
        for name, target in targets.items():
            engine = await stack.enter_async_context(engine_at(target, create=True))
            await check_bind(engine, access, address)
            apps[name], databases[name] = app_of(engine, name), shown(engine.url)
        several = len(apps) > 1
        server = make_server(SideBySide(apps) if several else next(iter(apps.values())), address, port, root)
        host = f"[{address}]" if ":" in address else address
        for name, database in databases.items():
            page = f"http://{host}:{port}{root}/{f'{name}/' if several else ''}"
            output.result(
                {"event": "serving", "url": f"{page}api/v1", "dashboard": page, "database": database},
                f"serving {page} and {page}api/v1",
            )
        await server.serve()


def _neighbours(given: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair in given:
        name, separator, target = pair.partition("=")
        if not separator or not name or not target:
            raise click.BadParameter(f"{pair!r} is not of the form NAME=URL", param_hint="--beside")
        found[name] = target
    return found


def _roles(groups: tuple[str, ...]) -> dict[str, Role]:
    roles: dict[str, Role] = {}
    for pair in groups:
        group, found, role = pair.rpartition("=")
        if not found or not group:
            raise click.BadParameter(f"{pair!r} is not of the form GROUP=ROLE", param_hint="--group")
        roles[group] = Role.of(role)
    return roles
