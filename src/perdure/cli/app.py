"""The commands, and what becomes of their errors.

Exit codes: 0 it was done, 1 it could not be done, 2 it was not said properly, 130 interrupted. An error of Perdure's is one
line on standard error, with `--json` one JSON object; the traceback is for those who ask for it with `--debug`.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import io
import logging
import os
import sys
from collections.abc import Sequence
from types import MappingProxyType

import click

from perdure.cli.logs import configure
from perdure.cli.output import dump, harmless
from perdure.errors import PerdureError

#: Where each command is defined; the attribute is called `command`.
COMMANDS = MappingProxyType(
    {
        "demo": "perdure.cli.demo.command",
        "worker": "perdure.cli.worker",
        "start": "perdure.cli.start",
        "runs": "perdure.cli.runs",
        "show": "perdure.cli.show",
        "why": "perdure.cli.why",
        "events": "perdure.cli.events",
        "states": "perdure.cli.states",
        "stream": "perdure.cli.stream",
        "send": "perdure.cli.send",
        "ask": "perdure.cli.ask",
        "broadcast": "perdure.cli.broadcast",
        "cancel": "perdure.cli.cancel",
        "pause": "perdure.cli.pause",
        "resume": "perdure.cli.resume",
        "paused": "perdure.cli.paused",
        "workers": "perdure.cli.workers",
        "types": "perdure.cli.types",
        "evict": "perdure.cli.evict",
        "wake": "perdure.cli.wake",
        "unblock": "perdure.cli.unblock",
        "retry": "perdure.cli.retry",
        "recover": "perdure.cli.recover",
        "fork": "perdure.cli.fork",
        "schedule": "perdure.cli.schedule",
        "due": "perdure.cli.due",
        "execute": "perdure.cli.execute",
        "limits": "perdure.cli.limits",
        "locks": "perdure.cli.locks",
        "breakers": "perdure.cli.breakers",
        "dead": "perdure.cli.dead",
        "delete": "perdure.cli.delete",
        "undelete": "perdure.cli.undelete",
        "prune": "perdure.cli.prune",
        "check": "perdure.cli.check",
        "migrate": "perdure.cli.migrate",
        "sql": "perdure.cli.sql",
        "stress": "perdure.cli.stress.command",
    }
)

FAILED = 1
MISUSED = 2
INTERRUPTED = 130


class Commands(click.Group):
    """Commands that are imported when they are wanted."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order in which people need them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name."""
        if cmd_name not in COMMANDS:
            return None
        command = importlib.import_module(COMMANDS[cmd_name]).command
        assert isinstance(command, click.Command)
        return command


def _show_version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        click.echo(f"perdure {importlib.metadata.version('perdure')}")
        ctx.exit()


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_show_version, help="Show the version."
)
def cli() -> None:
    """Durable execution for Python.

    A TARGET is either an engine in your code, such as `shop:engine` (module and attribute, looked up from the working
    directory), or a database, such as `sqlite:///shop.db`, for which no code is needed. Left out, it is taken from the
    environment variable PERDURE_URL.
    """


def run(arguments: Sequence[str]) -> int:
    """Run a command line; its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Stored text may hold what the terminal's encoding lacks; that is no reason to fail.
            stream.reconfigure(errors="backslashreplace")
    as_json, debug = "--json" in arguments, "--debug" in arguments
    if debug:
        configure("debug", json=as_json)
    else:
        # Without a handler, warnings meant for a service's log would land among a command's answer.
        logging.getLogger("perdure").addHandler(logging.NullHandler())
    try:
        code = cli.main(args=list(arguments), prog_name="perdure", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except click.UsageError as error:
        if as_json:
            _report(error, as_json)
        else:
            error.show()
        return MISUSED
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read the output has seen enough; the interpreter's own flush at exit must not complain either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except Exception as error:
        if debug:
            raise
        _report(error, as_json)
        return FAILED


def _report(error: Exception, as_json: bool) -> None:
    message = error.format_message() if isinstance(error, click.ClickException) else str(error)
    if not isinstance(error, PerdureError | click.ClickException):
        message = f"{type(error).__name__}: {message}; --debug shows where"
    if as_json:
        print(dump({"error": {"type": type(error).__name__, "message": message}}), file=sys.stderr)
    else:
        print(f"perdure: {harmless(message)}", file=sys.stderr)
