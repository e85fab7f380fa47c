"""`perdure delete`: hide a run that is over."""

from __future__ import annotations

import asyncio

import click

from perdure.cli.output import Output
from perdure.cli.params import with_output, with_target
from perdure.cli.target import engine_at


@click.command("delete")
@with_target
@click.argument("run")
@click.option("--because", default="", metavar="TEXT", help="Why, for the audit trail.")
@with_output
def command(target: str, run: str, because: str, output: Output) -> None:
    """Hide a finished run from listings. Its result stays readable, and `perdure undelete` brings it back."""
    deleted = asyncio.run(_delete(target, run, because))
    if output.json:
        output.document({"id": run, "deleted": deleted})
    else:
        output.line(f"{run} is deleted." if deleted else f"{run} was deleted before.")


async def _delete(target: str, run_id: str, reason: str) -> bool:
    async with engine_at(target) as engine:
        return await engine.delete(run_id, reason)
