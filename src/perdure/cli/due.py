"""`perdure due`: which runs could be worked on now."""

from __future__ import annotations

import asyncio

import click

from perdure.cli.output import Output
from perdure.cli.params import with_output, with_target
from perdure.cli.target import engine_at, is_url


@click.command("due")
@with_target
@click.option("--queue", "queues", multiple=True, default=("default",), show_default=True, help="Runs in this queue.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="At most so many.")
@with_output
def command(target: str, queues: tuple[str, ...], limit: int, output: Output) -> None:
    """List the runs of an engine that could be worked on now, for whoever tells others to.

    Also gives back the runs of dead workers, fails what is past its deadline and fires schedules. TARGET is an engine, such as shop:engine.
    """
    if is_url(target):
        raise click.UsageError("What is due depends on the code: name an engine, such as shop:engine, not a database.")
    due = asyncio.run(_due(target, queues, limit))
    if output.json:
        output.document(due)
        return
    for run_id in due:
        output.line(run_id)


async def _due(target: str, queues: tuple[str, ...], limit: int) -> list[str]:
    async with engine_at(target) as engine:
        return await engine.due(limit=limit, queues=queues)
