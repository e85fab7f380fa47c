"""`perdure unblock`: let a blocked run go on."""

from __future__ import annotations

import asyncio

import click

from perdure.cli.output import Output
from perdure.cli.params import with_output, with_target
from perdure.cli.target import engine_at


@click.command("unblock")
@with_target
@click.argument("run")
@with_output
def command(target: str, run: str, output: Output) -> None:
    """Let a blocked run go on, once what blocked it is mended."""
    unblocked = asyncio.run(_unblock(target, run))
    if output.json:
        output.document({"id": run, "unblocked": unblocked})
    else:
        output.line(f"{run} goes on." if unblocked else f"{run} is not blocked.")


async def _unblock(target: str, run_id: str) -> bool:
    async with engine_at(target) as engine:
        return await engine.unblock(run_id)
