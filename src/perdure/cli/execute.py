"""`perdure execute`: work on one run, here and now."""

from __future__ import annotations

import asyncio

import click
import msgspec

from perdure.cli.output import Output
from perdure.cli.params import with_output, with_target
from perdure.cli.target import engine_at, is_url
from perdure.core.model.claim import ExecutionResult


@click.command("execute")
@with_target
@click.argument("run")
@click.option("--timeout", metavar="DURATION", help="Give it back after this long, such as 30s.")
@with_output
def command(target: str, run: str, timeout: str | None, output: Output) -> None:
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
        return await engine.execute(run_id, timeout=timeout)
