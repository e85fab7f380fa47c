"""`perdure states`: what a run has published."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from perdure.cli.output import Output, dump
from perdure.cli.params import with_output, with_target
from perdure.cli.target import engine_at


@click.command("states")
@with_target
@click.argument("run")
@with_output
def command(target: str, run: str, output: Output) -> None:
    """Show what a run has published, by key."""
    states = asyncio.run(_states(target, run))
    if output.json:
        output.document({"id": run, "states": states})
    elif states:
        output.table(["key", "value"], [[key, dump(value)] for key, value in states.items()])
    else:
        output.hint(f"{run} has published nothing.")


async def _states(target: str, run_id: str) -> dict[str, Any]:
    async with engine_at(target) as engine:
        return await (await engine.get(run_id)).states()
