"""`perdure demo`: see a workflow survive a `kill -9`."""

from __future__ import annotations

import asyncio
import signal
import tempfile
from pathlib import Path

import click
import msgspec

from perdure.cli.console.output import Output
from perdure.cli.console.params import with_output
from perdure.cli.demo.story import Story
from perdure.cli.demo.summary import Summary
from perdure.cli.demo.timeline import Timeline


@click.command("demo")
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep the database and the traces in this folder.",
)
@with_output
def command(folder: Path | None, output: Output) -> None:
    """See a workflow survive a kill -9, in about ten seconds.

    Two worker processes and one SQLite file; no server. An order is worked on by process A, which is killed with SIGKILL in
    the middle; process B takes over. What A had finished is not done again.
    """
    if folder is None:
        with tempfile.TemporaryDirectory(prefix="perdure-demo-") as name:
            _tell(Path(name), output, kept=False)
        return
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise click.UsageError(f"The folder {folder} is not empty; name another.")
    _tell(folder, output, kept=True)


def _tell(folder: Path, output: Output, *, kept: bool) -> None:
    # The workers are children of this process: whoever ends it must not leave them behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    summary = asyncio.run(Story(folder, Timeline(output)).tell())
    if output.json:
        output.document(msgspec.to_builtins(summary))
    else:
        _show(output, summary)
        if kept:
            output.line(f"Look at the run: perdure show sqlite:///{folder}/shop.db {summary.run}")
    if not summary.ok:
        raise click.exceptions.Exit(1)


def _show(output: Output, summary: Summary) -> None:
    output.heading("Who did what")
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
        output.line("A finished step ran twice. That must not happen: please report it.", "bold red")
    if summary.in_flight:
        output.line(
            f"{', '.join(summary.in_flight)} was in flight when A died. Nobody can know how far it had come, so B ran it "
            "again: give the effects of a step a key of their own, such as run id and location, to make that harmless."
        )
