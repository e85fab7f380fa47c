"""`perdure retry`: open a failed run again."""

from __future__ import annotations

import asyncio
import datetime

import click

from perdure.cli.output import Output
from perdure.cli.params import Moment, with_output, with_target
from perdure.cli.target import engine_at


@click.command("retry")
@with_target
@click.argument("run")
@click.option("--deadline", type=Moment(), help="By when it is to be finished now; needed if its deadline has passed.")
@with_output
def command(target: str, run: str, deadline: datetime.datetime | datetime.timedelta | None, output: Output) -> None:
    """Open a run that failed or was cancelled again, where it failed. What succeeded is not done again."""
    generation = asyncio.run(_retry(target, run, deadline))
    if output.json:
        output.document({"id": run, "generation": generation})
    else:
        output.line(f"{run} goes on, as generation {generation}.")


async def _retry(target: str, run_id: str, deadline: datetime.datetime | datetime.timedelta | None) -> int:
    async with engine_at(target) as engine:
        return await (await engine.get(run_id)).retry(deadline=deadline)
