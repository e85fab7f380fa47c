"""`perdure watermarks`: bounds on the runs that wait in a queue or of a type, for all producers."""

from __future__ import annotations

import click

from perdure.cli.console.command_groups import Command, CommandGroup
from perdure.cli.console.document import Document
from perdure.cli.console.output import Printer
from perdure.cli.console.params import queue_or_type, with_output, with_queue_or_type, with_reason, with_target
from perdure.cli.console.target import with_engine
from perdure.client.engine import Engine
from perdure.core.policy.watermark import REFUSE, WAIT, Watermark

group = CommandGroup(
    "watermarks",
    {
        "Commands": {
            "list": "perdure.cli.watermarks:list_watermarks",
            "set": "perdure.cli.watermarks:set_watermark",
            "remove": "perdure.cli.watermarks:remove",
            "depth": "perdure.cli.watermarks:depth",
        }
    },
    help="List, set and remove watermarks, and count the runs that wait.",
    example="perdure watermarks set sqlite:///shop.db default --high 10000 --low 8000",
)


@click.command("list", cls=Command, example="perdure watermarks list sqlite:///shop.db")
@with_target
@with_output
def list_watermarks(target: str, output: Printer) -> None:
    """List the watermarks that are set in the database, and how many runs wait."""
    found = with_engine(target, _depths)
    if output.json:
        output.document([{**_document(mark), "depth": waiting} for mark, waiting in found])
    elif found:
        output.table(
            ("kind", "name", "high", "low", "when full", "waiting"),
            [
                (mark.kind, mark.name, str(mark.high), str(mark.floor), mark.when_full, _upto(waiting, mark.high))
                for mark, waiting in found
            ],
        )
    else:
        output.hint("No watermark is set in the database.")


@click.command(
    "set", cls=Command, example="perdure watermarks set sqlite:///shop.db default --high 10000 --when-full wait"
)
@with_queue_or_type
@click.option("--high", type=int, required=True, metavar="N", help="Starts are refused, or wait, once N runs wait.")
@click.option("--low", type=int, metavar="N", help="They resume below N; four fifths of --high by default.")
@click.option(
    "--when-full", type=click.Choice((REFUSE, WAIT)), default=REFUSE, show_default=True, help="What a start does then."
)
@with_reason
@with_output
def set_watermark(
    names: tuple[str, ...], type_: str | None, high: int, low: int | None, when_full: str, reason: str, output: Printer
) -> None:
    """Set the watermark of a queue, or of a type with --type, for all producers."""
    target, named = queue_or_type(names, type_)
    mark = Watermark(high=high, low=low, when_full=when_full, **named)
    with_engine(target, lambda engine: engine.queues.watermarks.set(mark, reason))
    output.result(
        _document(mark),
        f"{mark.name}: starts {_verb(mark)} once {mark.high} runs wait, until fewer than {mark.floor} do.",
    )


@click.command("remove", cls=Command, example="perdure watermarks remove sqlite:///shop.db default")
@with_queue_or_type
@with_reason
@with_output
def remove(names: tuple[str, ...], type_: str | None, reason: str, output: Printer) -> None:
    """Remove the watermark of a queue, or of a type with --type; the one in an engine's code applies again."""
    target, named = queue_or_type(names, type_)
    with_engine(target, lambda engine: engine.queues.watermarks.remove(**named, reason=reason))
    [name] = named.values()
    output.result({**named, "high": None}, f"{name}: watermark removed; the one declared in code applies.")


@click.command("depth", cls=Command, example="perdure watermarks depth sqlite:///shop.db default")
@with_queue_or_type
@click.option("--limit", default=100_000, show_default=True, help="Count up to this number.")
@with_output
def depth(names: tuple[str, ...], type_: str | None, limit: int, output: Printer) -> None:
    """Count the runs that are ready and wait for a worker, in a queue, or of a type with --type."""
    target, named = queue_or_type(names, type_)
    waiting = with_engine(target, lambda engine: engine.queues.watermarks.depth(**named, limit=limit))
    [name] = named.values()
    output.result({**named, "depth": waiting}, f"{name}: {_upto(waiting, limit)} waiting.")


async def _depths(engine: Engine) -> list[tuple[Watermark, int]]:
    """Return each watermark with the number of waiting runs, counted a little further than its high mark."""
    watermarks = engine.queues.watermarks
    return [
        (mark, await watermarks.depth(queue=mark.queue, type=mark.type, limit=mark.high + 1))
        for mark in await watermarks.list()
    ]


def _upto(waiting: int, limit: int) -> str:
    return str(waiting) if waiting <= limit else f"more than {limit}"


def _verb(mark: Watermark) -> str:
    return "wait" if mark.when_full == WAIT else "are refused"


def _document(mark: Watermark) -> Document:
    return {
        "queue": mark.queue,
        "type": mark.type,
        "high": mark.high,
        "low": mark.floor,
        "when_full": mark.when_full,
    }
