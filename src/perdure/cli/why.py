"""`perdure why`: why a run is where it is."""

from __future__ import annotations

import asyncio

import click

from perdure.cli.output import Output
from perdure.cli.params import with_output, with_target
from perdure.cli.target import engine_at
from perdure.core.model.run import Status


@click.command("why")
@with_target
@click.argument("run")
@with_output
def command(target: str, run: str, output: Output) -> None:
    """Say in a sentence why a run is where it is."""
    status, why = asyncio.run(_explain(target, run))
    if output.json:
        output.document({"id": run, "status": status.value, "why": why})
    else:
        output.line(why)


async def _explain(target: str, run_id: str) -> tuple[Status, str]:
    async with engine_at(target) as engine:
        handle = await engine.get(run_id)
        return await handle.status(), await handle.why()
