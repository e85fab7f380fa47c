"""`perdure recover`: give what failed its attempts anew."""

from __future__ import annotations

import asyncio

import click

from perdure.cli.output import Output
from perdure.cli.params import with_output, with_target
from perdure.cli.target import engine_at


@click.command("recover")
@with_target
@click.argument("run")
@with_output
def command(target: str, run: str, output: Output) -> None:
    """Give what has failed in a run its attempts anew, at once: failing steps, the failed run, one set aside as poison."""
    recovered = asyncio.run(_recover(target, run))
    if output.json:
        output.document({"id": run, "recovered": recovered})
    else:
        output.line(f"{run} goes on with all its attempts." if recovered else f"{run} has nothing to recover.")


async def _recover(target: str, run_id: str) -> bool:
    async with engine_at(target) as engine:
        return await (await engine.get(run_id)).recover()
