"""`perdure undelete`: bring a deleted run back."""

from __future__ import annotations

import asyncio

import click

from perdure.cli.output import Output
from perdure.cli.params import with_output, with_target
from perdure.cli.target import engine_at


@click.command("undelete")
@with_target
@click.argument("run")
@with_output
def command(target: str, run: str, output: Output) -> None:
    """Bring a run back that was deleted or discarded."""
    restored = asyncio.run(_undelete(target, run))
    if output.json:
        output.document({"id": run, "restored": restored})
    else:
        output.line(f"{run} is back." if restored else f"{run} is not deleted.")


async def _undelete(target: str, run_id: str) -> bool:
    async with engine_at(target) as engine:
        return await engine.undelete(run_id)
