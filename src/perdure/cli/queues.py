"""`perdure queues`: pauses of whole queues and types, and the types that workers have registered."""

from __future__ import annotations

import click
import msgspec

from perdure.cli.console.command_groups import Command, CommandGroup
from perdure.cli.console.output import Printer
from perdure.cli.console.params import queue_or_type, with_output, with_queue_or_type, with_target
from perdure.cli.console.target import with_engine
from perdure.core.printed_text import harmless_lines

group = CommandGroup(
    "queues",
    {
        "Commands": {
            "list": "perdure.cli.queues:list_paused",
            "pause": "perdure.cli.queues:pause",
            "resume": "perdure.cli.queues:resume",
            "types": "perdure.cli.queues:list_types",
            "source": "perdure.cli.queues:source",
        }
    },
    help="Pause and resume whole queues or types, and list registered types.",
    example="perdure queues pause sqlite:///shop.db reports --reason 'stocktaking'",
)


@click.command("list", cls=Command, example="perdure queues list sqlite:///shop.db")
@with_target
@with_output
def list_paused(target: str, output: Printer) -> None:
    """List the queues and types that are paused."""
    pauses = with_engine(target, lambda engine: engine.queues.paused())
    if output.json:
        output.document([msgspec.to_builtins(pause) for pause in pauses])
    elif pauses:
        output.table(("kind", "name", "reason"), [(pause.kind, pause.name, pause.reason) for pause in pauses])
    else:
        output.hint("No queue and no type is paused.")


@click.command("pause", cls=Command, example="perdure queues pause sqlite:///shop.db reports --reason 'stocktaking'")
@with_queue_or_type
@click.option("--reason", default="", metavar="TEXT", help="Shown by `perdure why`.")
@with_output
def pause(names: tuple[str, ...], type_: str | None, reason: str, output: Printer) -> None:
    """Pause a queue, or a type with --type: no worker claims its runs."""
    target, named = queue_or_type(names, type_)
    done = with_engine(target, lambda engine: engine.queues.pause(**named, reason=reason))
    [name] = named.values()
    output.result({**named, "paused": done}, f"{name} is paused." if done else f"{name} was paused already.")


@click.command("resume", cls=Command, example="perdure queues resume sqlite:///shop.db reports")
@with_queue_or_type
@click.option("--reason", default="", metavar="TEXT", help="Stored in the audit trail.")
@with_output
def resume(names: tuple[str, ...], type_: str | None, reason: str, output: Printer) -> None:
    """Resume a paused queue, or a paused type with --type."""
    target, named = queue_or_type(names, type_)
    done = with_engine(target, lambda engine: engine.queues.resume(**named, reason=reason))
    [name] = named.values()
    output.result({**named, "resumed": done}, f"{name} is resumed." if done else f"{name} was not paused.")


@click.command("source", cls=Command, example="perdure queues source sqlite:///shop.db shop.checkout.v1")
@with_target
@click.argument("type")
@click.option("--build", help="Of this build.  [default: the latest]")
@with_output
def source(target: str, type: str, build: str | None, output: Printer) -> None:
    """Print the source of a type, as its workers have registered it."""
    found = with_engine(target, lambda engine: engine.queues.sources(type))
    chosen = [one for one in found if build is None or one.build == build]
    if output.json:
        output.document([msgspec.to_builtins(one) for one in chosen])
    elif chosen:
        one = chosen[0]
        output.line(f"{one.type}  {one.build}  {one.file}:{one.line}", "bold")
        for line in harmless_lines(one.source or one.doc):
            output.line(line)
    else:
        output.hint(f"No worker has registered the source of {type}.")


@click.command("types", cls=Command, example="perdure queues types sqlite:///shop.db")
@with_target
@with_output
def list_types(target: str, output: Printer) -> None:
    """List the types that workers have registered, and whether each is enabled.

    `perdure queues pause --type` disables a type, and `perdure queues resume --type` enables it.
    """
    types = with_engine(target, lambda engine: engine.queues.types())
    if output.json:
        output.document([msgspec.to_builtins(one) for one in types])
    elif types:
        rows = [
            (one.type, one.kind, one.runtime, "enabled" if one.enabled else "disabled", one.description)
            for one in types
        ]
        output.table(("type", "kind", "runtime", "status", "description"), rows)
    else:
        output.hint("No worker has registered a type yet.")
