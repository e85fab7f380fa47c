"""`perdure cancel`: ask a run to stop."""

from __future__ import annotations

import asyncio

import click

from perdure.cli.output import Output
from perdure.cli.params import with_output, with_target
from perdure.cli.target import engine_at


@click.command("cancel")
@with_target
@click.argument("run")
@click.option("--reason", default="", help="Why; kept with the run.")
@with_output
def command(target: str, run: str, reason: str, output: Output) -> None:
    """Ask a run to stop. Its workflow may clean up first."""
    accepted = asyncio.run(_cancel(target, run, reason))
    if output.json:
        output.document({"id": run, "cancelling": accepted})
    else:
        output.line(f"{run} was asked to stop." if accepted else f"{run} had finished already.")


async def _cancel(target: str, run_id: str, reason: str) -> bool:
    async with engine_at(target) as engine:
        return await engine.cancel(run_id, reason)
