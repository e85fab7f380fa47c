"""`perdure queues`: pauses of whole queues and types, and the types that workers have registered."""

from __future__ import annotations

import click
import msgspec

from perdure.cli.console.commands import Command, CommandGroup
from perdure.cli.console.output import Printer
from perdure.cli.console.params import queue_or_type, with_output, with_queue_or_type, with_target
from perdure.cli.console.target import with_engine

group = CommandGroup(
    "queues",
    {
        "Commands": {
            "list": "perdure.cli.queues:list_paused",
            "pause": "perdure.cli.queues:pause",
            "resume": "perdure.cli.queues:resume",
            "types": "perdure.cli.queues:list_types",
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
@with_output
def resume(names: tuple[str, ...], type_: str | None, output: Printer) -> None:
    """Resume a paused queue, or a paused type with --type."""
    target, named = queue_or_type(names, type_)
    done = with_engine(target, lambda engine: engine.queues.resume(**named))
    [name] = named.values()
    output.result({**named, "resumed": done}, f"{name} is resumed." if done else f"{name} was not paused.")


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
