"""`perdure resume`: let what was paused go on."""

from __future__ import annotations

import asyncio

import click

from perdure.cli.output import Output
from perdure.cli.params import what_of, with_output, with_what
from perdure.cli.target import engine_at


@click.command("resume")
@with_what
@with_output
def command(names: tuple[str, ...], type_: str | None, queue: str | None, output: Output) -> None:
    """Let a run, all runs of a type, or all in a queue go on that were paused."""
    target, what = what_of(names, type_, queue)
    done = asyncio.run(_resume(target, what))
    [name] = what.values()
    if output.json:
        output.document({**what, "resumed": done})
    else:
        output.line(f"{name} goes on." if done else f"{name} was not paused.")


async def _resume(target: str, what: dict[str, str]) -> bool:
    async with engine_at(target) as engine:
        return await engine.resume(**what)
