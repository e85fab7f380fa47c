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

from perdure.cli.console.logs import configure
from perdure.cli.console.output import dump, harmless
from perdure.errors import PerdureError

#: Where each command is defined: module and attribute.
COMMANDS = MappingProxyType(
    {
        "demo": "perdure.cli.demo.command:command",
        "worker": "perdure.cli.workers:worker",
        "start": "perdure.cli.start:command",
        "runs": "perdure.cli.runs:list_runs",
        "show": "perdure.cli.runs:show",
        "why": "perdure.cli.runs:why",
        "events": "perdure.cli.audit:command",
        "states": "perdure.cli.runs:states",
        "stream": "perdure.cli.runs:stream",
        "send": "perdure.cli.messages:send",
        "ask": "perdure.cli.messages:ask",
        "broadcast": "perdure.cli.messages:broadcast",
        "cancel": "perdure.cli.control:cancel",
        "pause": "perdure.cli.control:pause",
        "resume": "perdure.cli.control:resume",
        "paused": "perdure.cli.control:list_paused",
        "workers": "perdure.cli.workers:list_workers",
        "types": "perdure.cli.workers:list_types",
        "evict": "perdure.cli.control:evict",
        "wake": "perdure.cli.control:wake",
        "unblock": "perdure.cli.retry:unblock",
        "retry": "perdure.cli.retry:retry",
        "recover": "perdure.cli.retry:recover",
        "fork": "perdure.cli.retry:fork",
        "schedule": "perdure.cli.schedules:command",
        "due": "perdure.cli.push:list_due",
        "execute": "perdure.cli.push:execute",
        "limits": "perdure.cli.limits:command",
        "locks": "perdure.cli.locks:command",
        "breakers": "perdure.cli.breakers:command",
        "dead": "perdure.cli.dead_letters:command",
        "delete": "perdure.cli.retention:delete",
        "undelete": "perdure.cli.retention:undelete",
        "prune": "perdure.cli.retention:prune",
        "check": "perdure.cli.deploy:command",
        "migrate": "perdure.cli.database:migrate",
        "sql": "perdure.cli.database:sql",
        "stress": "perdure.cli.stress.command:command",
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
        module, _, attribute = COMMANDS[cmd_name].partition(":")
        command = getattr(importlib.import_module(module), attribute)
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
