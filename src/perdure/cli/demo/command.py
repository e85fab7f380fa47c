"""`perdure demo`: a workflow survives a `kill -9`."""

from __future__ import annotations

import asyncio
import signal
import tempfile
from pathlib import Path

import click
import msgspec

from perdure.cli.console.commands import Command
from perdure.cli.console.output import Printer
from perdure.cli.console.params import with_output
from perdure.cli.demo.scenario import Scenario, Summary, Timeline


@click.command("demo", cls=Command, example="perdure demo --folder demo")
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep the database and the traces in this folder.",
)
@with_output
def command(folder: Path | None, output: Printer) -> None:
    """Watch a workflow survive a kill -9, in about ten seconds.

    The demo uses two worker processes and one SQLite file, and no server. Process A works on an order and is killed
    with SIGKILL in the middle; process B takes over. Steps that A had finished do not run again.
    """
    if folder is None:
        with tempfile.TemporaryDirectory(prefix="perdure-demo-") as name:
            _run(Path(name), output, kept=False)
        return
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise click.UsageError(f"the folder {folder} is not empty; name another")
    _run(folder, output, kept=True)


def _run(folder: Path, output: Printer, *, kept: bool) -> None:
    # SIGTERM raises KeyboardInterrupt, so that the worker processes are stopped with this one.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    summary = asyncio.run(Scenario(folder, Timeline(output)).run())
    if output.json:
        output.document(msgspec.to_builtins(summary))
    else:
        _print_summary(output, summary)
        if kept:
            output.line(f"Inspect the run: perdure show sqlite:///{folder}/shop.db {summary.run}")
    if not summary.ok:
        raise click.exceptions.Exit(1)


def _print_summary(output: Printer, summary: Summary) -> None:
    output.heading("Attempts and effects")
    rows = [
        (step.name, str(step.attempts_by_a), str(step.attempts_by_b), str(step.effects), step.note)
        for step in summary.steps
    ]
    output.table(("step", "attempts by A", "attempts by B", "effects", ""), rows)
    output.line("")
    output.line(
        f"Process {summary.killed.pid} (A) was killed with {summary.killed.signal}; {summary.took_over} (B) took over."
    )
    if summary.ok:
        output.line(f"The order is {summary.status}: {summary.result}. No finished step ran twice.", "bold green")
    else:
        output.line("A finished step ran twice. This is a bug: please report it.", "bold red")
    if summary.in_flight:
        output.line(
            f"{', '.join(summary.in_flight)} was in flight when A died, so B ran it again: "
            "its effect may happen twice. "
            "Use an idempotency key for such an effect, for example run id and location."
        )
