"""Commands that find and execute single runs, for schedulers that start processes themselves."""

from __future__ import annotations

import click
import msgspec

from perdure.cli.console.command_groups import Command
from perdure.cli.console.output import Printer
from perdure.cli.console.params import with_output, with_target
from perdure.cli.console.target import is_url, with_engine
from perdure.client.pusher import Pusher


@click.command("due", cls=Command, example="perdure runs due shop:engine --limit 10")
@with_target
@click.option("--queue", "queues", multiple=True, default=("default",), show_default=True, help="Runs in this queue.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="Maximum number of runs.")
@with_output
def list_due(target: str, queues: tuple[str, ...], limit: int, output: Printer) -> None:
    """List the runs of an engine that `perdure runs execute` could work on now.

    It also releases the runs of dead workers, expires runs past their deadline and fires schedules. TARGET is an
    engine, such as shop:engine.
    """
    if is_url(target):
        raise click.UsageError("finding due runs needs code: name an engine such as shop:engine, not a database")
    due = with_engine(target, lambda engine: Pusher(engine).due(limit=limit, queues=queues))
    if output.json:
        output.document(due)
        return
    for run_id in due:
        output.line(run_id)


@click.command("execute", cls=Command, example="perdure runs execute shop:engine order-42 --timeout 30s")
@with_target
@click.argument("run")
@click.option("--timeout", metavar="DURATION", help="Release the run after this long, such as 30s.")
@with_output
def execute(target: str, run: str, timeout: str | None, output: Printer) -> None:
    """Work on one run in this process until it waits or ends.

    Prints its state and when to try again. TARGET is an engine, such as shop:engine.
    """
    if is_url(target):
        raise click.UsageError("executing a run needs code: name an engine such as shop:engine, not a database")
    done = with_engine(target, lambda engine: Pusher(engine).execute(run, timeout=timeout))
    reason = f" for a {done.reason}" if done.reason else ""
    again = "" if done.again_in is None else f"; try again in {done.again_in:.1f} s"
    output.result(msgspec.to_builtins(done), f"{run} is {done.state}{reason}{again}.")
