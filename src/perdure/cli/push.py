"""Commands that execute single runs."""

from __future__ import annotations

import asyncio

import click
import msgspec

from perdure.cli.console.output import Output
from perdure.cli.console.params import with_output, with_target
from perdure.cli.console.target import engine_at, is_url
from perdure.client.pusher import Pusher
from perdure.core.model.claim import ExecutionResult


@click.command("due")
@with_target
@click.option("--queue", "queues", multiple=True, default=("default",), show_default=True, help="Runs in this queue.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="At most so many.")
@with_output
def list_due(target: str, queues: tuple[str, ...], limit: int, output: Output) -> None:
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
        return await Pusher(engine).due(limit=limit, queues=queues)


@click.command("execute")
@with_target
@click.argument("run")
@click.option("--timeout", metavar="DURATION", help="Give it back after this long, such as 30s.")
@with_output
def execute(target: str, run: str, timeout: str | None, output: Output) -> None:
    """Work on one run in this process, until it waits or ends.

    Prints where it stands, and when to try again. TARGET is an engine, such as shop:engine.
    """
    if is_url(target):
        raise click.UsageError("Working on a run needs code: name an engine, such as shop:engine, not a database.")
    done = asyncio.run(_execute(target, run, timeout))
    if output.json:
        output.document(msgspec.to_builtins(done))
        return
    why = f" for a {done.reason}" if done.reason else ""
    again = "" if done.again_in is None else f"; try again in {done.again_in:.1f} s"
    output.line(f"{run} is {done.state}{why}{again}.")


async def _execute(target: str, run_id: str, timeout: str | None) -> ExecutionResult:
    async with engine_at(target) as engine:
        return await Pusher(engine).execute(run_id, timeout=timeout)
