"""`perdure logs`: the log lines that were kept with a run."""

from __future__ import annotations

import asyncio

import click

from perdure.cli.console.command_groups import Command
from perdure.cli.console.describe import when
from perdure.cli.console.document import Document, moment
from perdure.cli.console.output import Printer
from perdure.cli.console.params import with_output, with_target
from perdure.cli.console.target import engine_at
from perdure.client.handle import Handle
from perdure.core.printed_text import harmless_lines
from perdure.core.run_log import MOST_LINES, LoggedLine

#: Seconds between two looks at a log that is followed.
_PAUSE = 1.0


@click.command("logs", cls=Command, example="perdure logs sqlite:///shop.db order-42 --follow")
@with_target
@click.argument("run")
@click.option("--after", type=click.IntRange(min=0), help="Begin after the line of this number.")
@click.option(
    "--limit", type=click.IntRange(1, MOST_LINES), default=100, show_default=True, help="Lines to begin with at most."
)
@click.option("--follow", is_flag=True, help="Wait for more until the run ends.")
@with_output
def logs(target: str, run: str, after: int | None, limit: int, follow: bool, output: Printer) -> None:
    """Print the latest log lines of a run that workers with --keep-log have kept."""
    asyncio.run(_print_log(target, run, after, limit, follow, output))


async def _print_log(target: str, run: str, after: int | None, limit: int, follow: bool, output: Printer) -> None:
    async with engine_at(target) as engine:
        handle = await engine.get(run)
        ended = not follow
        while True:
            # Read before the lines: a worker writes the last ones a moment after the end.
            finished = (await handle.status()).finished
            last = await _print_new(handle, after, limit, output)
            if ended:
                break
            ended, after, limit = finished, last, MOST_LINES
            await asyncio.sleep(_PAUSE + finished)
        if last is None and not follow:
            output.hint(f"no line of {run} was kept; its worker needs --keep-log")


async def _print_new(handle: Handle[object], after: int | None, limit: int, output: Printer) -> int | None:
    """Print lines past a number; the number of the last one."""
    for line in await handle.logs(after=after, limit=limit):
        after = line.number
        output.result(_document(line), _text(line))
    return after


def _document(line: LoggedLine) -> Document:
    return {
        "number": line.number,
        "at": moment(line.at),
        "level": line.level,
        "logger": line.logger,
        "location": line.location,
        "attempt": line.attempt,
        "text": line.text,
        "traceback": line.traceback,
    }


def _text(line: LoggedLine) -> str:
    place = f"{line.location} " if line.location else ""
    first = f"{when(line.at)} {line.level} {place}{line.logger}: {line.text}"
    return "\n".join(harmless_lines(f"{first}\n{line.traceback.rstrip()}" if line.traceback else first))
