"""`perdure activities`: reports about activities that have returned `Pending`, by the token of their attempt."""

from __future__ import annotations

from typing import Any

import click

from perdure.cli.console.command_groups import Command, CommandGroup
from perdure.cli.console.output import Printer
from perdure.cli.console.params import JsonParam, with_output, with_target
from perdure.cli.console.target import with_engine
from perdure.core.codec.failure import Failure, type_name
from perdure.errors import StepFailed

group = CommandGroup(
    "activities",
    {
        "Commands": {
            "complete": "perdure.cli.runs.activities:complete",
            "fail": "perdure.cli.runs.activities:fail",
            "heartbeat": "perdure.cli.runs.activities:heartbeat",
        }
    },
    help="""Complete, fail and keep alive activities that have returned `Pending`.

    A TOKEN is what `activity_info().token` returned in the attempt.
    """,
    example="perdure activities complete sqlite:///shop.db TOKEN --value true",
)


@click.command("complete", cls=Command, example="perdure activities complete sqlite:///shop.db TOKEN --value true")
@with_target
@click.argument("token")
@click.option("--value", metavar="JSON", type=JsonParam(), default="null", show_default=True, help="The result.")
@with_output
def complete(target: str, token: str, value: Any, output: Printer) -> None:
    """Complete an activity with its result."""
    with_engine(target, lambda engine: engine.runs.complete(token, value))
    output.result({"token": token, "completed": True}, "The activity has completed.")


@click.command("fail", cls=Command, example="perdure activities fail sqlite:///shop.db TOKEN 'card declined'")
@with_target
@click.argument("token")
@click.argument("message")
@click.option("--type", "type_", default=type_name(StepFailed), show_default=True, help="Name of the error's class.")
@with_output
def fail(target: str, token: str, message: str, type_: str, output: Printer) -> None:
    """Fail the attempt of an activity; its retry policy decides what follows."""
    with_engine(target, lambda engine: engine.runs.fail(token, Failure(type=type_, message=message)))
    output.result({"token": token, "failed": True}, "The failure is recorded; the retry policy decides what follows.")


@click.command("heartbeat", cls=Command, example="perdure activities heartbeat sqlite:///shop.db TOKEN --details 7")
@with_target
@click.argument("token")
@click.option("--details", metavar="JSON", type=JsonParam(), default="null", help="For the next attempt.")
@with_output
def heartbeat(target: str, token: str, details: Any, output: Printer) -> None:
    """Report that an activity goes on, which puts off its heartbeat timeout."""
    with_engine(target, lambda engine: engine.runs.heartbeat(token, details))
    output.result({"token": token, "heartbeat": True}, "The heartbeat is recorded.")
