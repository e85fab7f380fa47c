"""`perdure pause`: let a run, or all of a type or queue, wait."""

from __future__ import annotations

import asyncio

import click

from perdure.cli.output import Output
from perdure.cli.params import what_of, with_output, with_what
from perdure.cli.target import engine_at


@click.command("pause")
@with_what
@click.option("--reason", default="", help="Why; shown to whoever asks.")
@with_output
def command(names: tuple[str, ...], type_: str | None, queue: str | None, reason: str, output: Output) -> None:
    """Pause a run, all runs of a type, or all in a queue.

    A run ends the steps that are under way and then waits. Of a type or a queue no more runs are taken.

    For example: perdure pause sqlite:///shop.db --queue reports
    """
    target, what = what_of(names, type_, queue)
    done = asyncio.run(_pause(target, what, reason))
    [name] = what.values()
    if output.json:
        output.document({**what, "paused": done})
    else:
        output.line(f"{name} is paused." if done else f"{name} was paused already, or has finished.")


async def _pause(target: str, what: dict[str, str], reason: str) -> bool:
    async with engine_at(target) as engine:
        return await engine.pause(**what, reason=reason)
