"""`perdure dev`: a worker that follows changes of the code, the dashboard, and the HTTP API."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import socket
import sys
import threading
import webbrowser
from collections.abc import Mapping
from pathlib import Path

import click

from perdure.cli.console import logs
from perdure.cli.console.command_groups import Command
from perdure.cli.console.output import Printer
from perdure.cli.console.params import DATABASE_TIMEOUT, with_output, with_target
from perdure.cli.console.target import is_url
from perdure.cli.dev.child import HOST, ChildSettings
from perdure.cli.dev.lines import LinePrinter
from perdure.cli.dev.supervisor import Supervisor
from perdure.core.option_checks import check_duration
from perdure.errors import UsageError

#: Port of `perdure serve`, too.
PORT = 8470
_NEEDED = ("starlette", "uvicorn", "jinja2", "watchfiles")


@click.command("dev", cls=Command, example="perdure dev app:engine")
@with_target
@click.option("--port", type=click.IntRange(0, 65535), help=f"Port of the dashboard.  [default: {PORT}, or a free one]")
@click.option("--queue", "queues", multiple=True, default=("default",), show_default=True, help="Queue of the worker.")
@click.option(
    "--watch", "folders", multiple=True, default=(".",), show_default=True, metavar="FOLDER",
    type=click.Path(exists=True, file_okay=False, path_type=Path), help="Folder whose Python files are watched.",
)  # fmt: skip
@click.option("--reload/--no-reload", default=True, help="Load the code again when it changes.  [default: reload]")
@click.option("--strict/--no-strict", default=True, help="Refuse clocks, randomness and I/O in workflow code, and "
              "values that JSON changes.  [default: strict]")  # fmt: skip
@click.option("--browser/--no-browser", default=True, help="Open the dashboard.  [default: browser]")
@click.option("--lease", default="3s", show_default=True, help="Time until the runs of a killed worker go on.")
@click.option("--grace", default="5s", show_default=True, help="How long steps may continue after a stop or a reload.")
@click.option("--log-level", type=click.Choice(logs.LEVELS), default="warning", show_default=True, help="Of the log.")
@with_output
def dev(
    target: str,
    port: int | None,
    queues: tuple[str, ...],
    folders: tuple[Path, ...],
    reload: bool,
    strict: bool,
    browser: bool,
    lease: str,
    grace: str,
    log_level: str,
    output: Printer,
) -> None:
    """Develop an engine: run a worker that follows changes of your code, and the dashboard.

    Only this machine reaches the dashboard and the HTTP API, without a token and as an operator. Use `perdure worker`
    and `perdure serve` in production.
    """
    if is_url(target):
        raise click.UsageError(f"perdure dev needs code: name an engine such as app:engine, not {target}")
    _check_installed(reload=reload)
    check_duration("lease", lease)
    check_duration("grace", grace)
    lines = LinePrinter(json=output.json)
    with listening(port) as sock:
        found: int = sock.getsockname()[1]
        page = f"http://{HOST}:{found}/"
        _print_head(output, target, page, folders if reload else (), taken=port is None and found != PORT)
        settings = ChildSettings(
            role="", target=target, json=output.json, strict=strict, lease=lease, grace=grace, queues=queues,
            log_level=log_level, socket=sock.fileno(), ready=-1, port=found,
            database_timeout=click.get_current_context().meta.get(DATABASE_TIMEOUT),
        )  # fmt: skip
        opens = browser and may_open_browser(os.environ, sys.platform)
        code = asyncio.run(_run(settings, lines, folders if reload else (), page if opens else ""))
    if code:
        raise click.exceptions.Exit(code)
    output.result({"event": "stopped"}, "stopped")


async def _run(settings: ChildSettings, lines: LinePrinter, folders: tuple[Path, ...], page: str) -> int:
    def open_page() -> None:
        if page:
            # A browser may take its time to start, and a text browser would wait for its user.
            threading.Thread(target=webbrowser.open, args=(page,), name="perdure browser", daemon=True).start()

    supervisor = Supervisor(settings, lines, open_page)
    if not folders:
        return await supervisor.run(None)
    from perdure.cli.dev.watch import make_watch

    return await supervisor.run(make_watch([folder.resolve() for folder in folders], lines))


def _check_installed(*, reload: bool) -> None:
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None and (reload or name != "watchfiles")]
    if missing:
        raise UsageError(f"perdure dev needs {', '.join(missing)}, of the extra `dev`: pip install 'perdure[dev]'")
    if os.name != "posix":
        raise UsageError("perdure dev needs Linux, macOS or WSL; elsewhere run perdure worker and perdure serve")


def listening(port: int | None) -> socket.socket:
    """Listen on loopback: on that port, or on the usual one, or on a free one. Raises `UsageError`."""
    problem: OSError | None = None
    for one in (PORT, 0) if port is None else (port,):
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((HOST, one))
            # From now on, a browser waits for the server instead of being refused.
            sock.listen(128)
        except OSError as error:
            sock.close()
            problem = error
        else:
            return sock
    raise UsageError(f"cannot listen on port {port} of {HOST}: {problem}; leave out --port to use a free one")


def may_open_browser(environment: Mapping[str, str], platform: str) -> bool:
    """Tell whether a person sits in front of a display: never in continuous integration, and not over SSH."""
    if environment.get("CI") or not sys.stdout.isatty():
        return False
    if platform == "darwin":
        return not environment.get("SSH_CONNECTION")
    return bool(environment.get("DISPLAY") or environment.get("WAYLAND_DISPLAY"))


def _print_head(output: Printer, target: str, page: str, folders: tuple[Path, ...], *, taken: bool) -> None:
    if output.json:
        output.document({"event": "serving", "dashboard": page, "url": f"{page}api/v1", "target": target})
        return
    output.line(f"perdure dev {target}", "bold")
    output.fields(
        [
            ("dashboard", page + (f"  (port {PORT} is taken)" if taken else "")),
            ("HTTP API", f"{page}api/v1"),
            ("reload", ", ".join(str(folder.resolve()) for folder in folders)),
            ("stop", "Ctrl-C"),
        ]
    )
    output.line("")
