"""`perdure wake`: let a sleep end at another time."""

from __future__ import annotations

import asyncio
import datetime

import click

from perdure.cli.output import Output
from perdure.cli.params import Moment, with_output, with_target
from perdure.cli.target import engine_at


@click.command("wake")
@with_target
@click.argument("run")
@click.option("--at", type=Moment(), help="When; now if left out.")
@with_output
def command(target: str, run: str, at: datetime.datetime | datetime.timedelta | None, output: Output) -> None:
    """Let the sleep that a run is in end at another time; or begin a run that was to begin later."""
    asyncio.run(_wake(target, run, at))
    if output.json:
        output.document({"id": run, "woken": True})
    else:
        output.line(f"{run} is woken{' then' if at is not None else ''}.")


async def _wake(target: str, run_id: str, at: datetime.datetime | datetime.timedelta | None) -> None:
    async with engine_at(target) as engine:
        await engine.wake(run_id, at)
