"""The command line: its commands, and how errors become messages and exit codes.

A command's module, and what only errors need, is imported when it is used, so that help and completion come at once.

Exit codes: 0 done, 1 failed, 2 misused, 130 interrupted. An error of Perdure is one line on standard error, or one JSON
object with `--json`. `--debug` shows the traceback instead.
"""

from __future__ import annotations

import io
import logging
import os
import sys
import traceback
from collections.abc import Sequence
from types import MappingProxyType

import click

from perdure.cli.console import completion
from perdure.cli.console.command_groups import CommandGroup
from perdure.cli.console.output import dump
from perdure.core.printed_text import harmless, harmless_lines
from perdure.errors import PerdureError

#: Commands by section of the help text, most needed first.
COMMANDS = MappingProxyType(
    {
        "Run workflows": {
            "init": "perdure.cli.init.command:init",
            "dev": "perdure.cli.dev.command:dev",
            "demo": "perdure.cli.demo.command:command",
            "worker": "perdure.cli.workers:worker",
            "start": "perdure.cli.runs.start:start",
            "wait": "perdure.cli.live.wait:wait",
            "send": "perdure.cli.runs.messages:send",
            "ask": "perdure.cli.runs.messages:ask",
            "broadcast": "perdure.cli.runs.messages:broadcast",
            "cancel": "perdure.cli.runs.control:cancel",
            "terminate": "perdure.cli.runs.control:terminate",
            "serve": "perdure.cli.serve:serve",
            "mcp": "perdure.cli.mcp:mcp",
            "check": "perdure.cli.replay.deploy:check",
            "export": "perdure.cli.replay.histories:export",
            "replay": "perdure.cli.replay.histories:replay",
            "debug": "perdure.cli.replay.debug:debug",
            "lint": "perdure.cli.lint:lint",
        },
        "Short for `perdure runs ...`": {
            "show": "perdure.cli.runs.commands:show",
            "why": "perdure.cli.runs.commands:why",
            "logs": "perdure.cli.runs.logs:logs",
            "retry": "perdure.cli.runs.control:retry",
        },
        "Inspect and operate": {
            "top": "perdure.cli.live.top:top",
            "runs": "perdure.cli.runs.commands:group",
            "dead-letters": "perdure.cli.dead_letters:group",
            "messages": "perdure.cli.runs.messages:group",
            "outbox": "perdure.cli.outbox.commands:group",
            "activities": "perdure.cli.runs.activities:group",
            "schedules": "perdure.cli.schedules:group",
            "queues": "perdure.cli.queues:group",
            "workers": "perdure.cli.workers:group",
            "limits": "perdure.cli.limits:group",
            "breakers": "perdure.cli.limits:breakers",
            "locks": "perdure.cli.locks:group",
            "watermarks": "perdure.cli.watermarks:group",
            "events": "perdure.cli.live.events:group",
            "audit": "perdure.cli.audit:group",
            "tokens": "perdure.cli.tokens:group",
        },
        "Database": {
            "doctor": "perdure.cli.doctor.command:doctor",
            "migrate": "perdure.cli.database:migrate",
            "sql": "perdure.cli.database:sql",
            "stress": "perdure.cli.stress.command:command",
        },
        "Shell": {
            "completion": "perdure.cli.console.completion:completion",
        },
    }
)

#: Earlier names of commands, for the hint that a user of them gets.
_MOVED = MappingProxyType(
    {
        "dead": "dead-letters",
        "schedule": "schedules",
        "types": "queues types",
        "paused": "queues list",
        "pause": "runs pause` or `perdure queues pause",
        "resume": "runs resume` or `perdure queues resume",
        "recover": "retry",
        "unblock": "retry",
        **{
            name: f"runs {name}"
            for name in ("fork", "wake", "evict", "delete", "undelete", "prune", "states", "stream", "due", "execute")
        },
    }
)

FAILED = 1
MISUSED = 2
INTERRUPTED = 130


def _show_version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        import importlib.metadata

        click.echo(f"perdure {importlib.metadata.version('perdure')}")
        ctx.exit()


cli = CommandGroup(
    "perdure",
    COMMANDS,
    help="""Durable execution for Python.

    A TARGET is either an engine in your code, such as `shop:engine` (module and attribute, found from the working
    directory), or a database, such as `sqlite:///shop.db`, for which no code is needed. Without a TARGET, a command
    uses the environment variable PERDURE_URL.
    """,
    example="perdure runs sqlite:///shop.db --status failed --since 1h",
    moved=_MOVED,
    params=[
        click.Option(
            ["--version"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_show_version,
            help="Show the version.",
        )
    ],
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def main() -> None:
    """Run the command line of this process and exit with its code."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str], target: str | None = None) -> int:
    """Run a command line and return its exit code. `target`: that of commands that name none."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Stored text may hold characters that the terminal's encoding lacks; printing it must not fail.
            stream.reconfigure(errors="backslashreplace")
    if completion.VARIABLE in os.environ:
        completion.install()
    as_json, debug = "--json" in arguments, "--debug" in arguments
    if debug:
        from perdure.cli.console.logs import configure

        configure("debug", None, json=as_json)
    else:
        # Without a handler, Python prints log warnings to standard error, between the lines of the command.
        logging.getLogger("perdure").addHandler(logging.NullHandler())
    try:
        code = cli.main(args=list(arguments), prog_name="perdure", standalone_mode=False, obj=target)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except click.UsageError as error:
        _report_usage(error, _secrets(arguments), as_json)
        return MISUSED
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of the output has gone, as `head` does. The interpreter's flush at exit must not fail either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except Exception as error:
        if debug:
            _print_traceback(error, _secrets(arguments))
        else:
            _report(error, _secrets(arguments), as_json)
        return FAILED


def _secrets(arguments: Sequence[str]) -> frozenset[str]:
    """Passwords of URLs among the arguments, which messages about wrong arguments repeat."""
    from perdure.cli.console.params import ENVIRONMENT
    from perdure.store.url import secrets_of

    given = [*arguments, os.environ.get(ENVIRONMENT, "")]
    return frozenset(secret for one in given if "://" in one or "@" in one for secret in secrets_of(one))


def _report_usage(error: click.UsageError, secrets: frozenset[str], as_json: bool) -> None:
    if as_json:
        _report(error, secrets, as_json)
        return
    from perdure.store.url import masked

    text = io.StringIO()
    error.show(text)
    for line in harmless_lines(masked(text.getvalue().rstrip("\n"), secrets)):
        print(line, file=sys.stderr)


def _print_traceback(error: Exception, secrets: frozenset[str]) -> None:
    from perdure.store.url import masked

    text = "".join(traceback.format_exception(error)).rstrip("\n")
    for line in harmless_lines(masked(text, secrets)):
        print(line, file=sys.stderr)


def _report(error: Exception, secrets: frozenset[str], as_json: bool) -> None:
    from perdure.store.url import masked

    message = error.format_message() if isinstance(error, click.ClickException) else str(error)
    if not isinstance(error, PerdureError | TimeoutError | click.ClickException):
        message = f"{type(error).__name__}: {message}; --debug shows the traceback"
    message = masked(message, secrets)
    if as_json:
        print(dump({"error": {"type": type(error).__name__, "message": message}}), file=sys.stderr)
    else:
        print(f"perdure: {harmless(message)}", file=sys.stderr)
