"""`perdure evict`: move a run to another worker."""

from __future__ import annotations

import asyncio

import click

from perdure.cli.output import Output
from perdure.cli.params import with_output, with_target
from perdure.cli.target import engine_at


@click.command("evict")
@with_target
@click.argument("run")
@with_output
def command(target: str, run: str, output: Output) -> None:
    """Have a run given back by the worker that holds it, and taken by another if there is one.

    Steps that are under way may end first, for as long as that worker's grace lasts.
    """
    held = asyncio.run(_evict(target, run))
    if output.json:
        output.document({"id": run, "evicted": held})
    else:
        output.line(f"{run} is about to be given back." if held else f"{run} is in no worker's hands.")


async def _evict(target: str, run_id: str) -> bool:
    async with engine_at(target) as engine:
        return await engine.evict(run_id)
