"""`perdure runs`: which runs there are."""

from __future__ import annotations

import asyncio
import datetime
from typing import Any

import click

from perdure.cli.describe import status, status_style, when
from perdure.cli.document import run_document
from perdure.cli.output import Output
from perdure.cli.params import Moment, with_output, with_target
from perdure.cli.target import engine_at
from perdure.core.model.run import RunPage, Status


@click.command("runs")
@with_target
@click.option("--status", multiple=True, type=click.Choice([one.value for one in Status]), help="In this status.")
@click.option("--type", help="Of this workflow type.")
@click.option("--queue", help="In this queue.")
@click.option("--parent", metavar="RUN", help="Children of this run.")
@click.option("--since", "created_after", type=Moment(), help="Created after this time, or within this duration.")
@click.option("--until", "created_before", type=Moment(), help="Created before this time, or longer ago than this.")
@click.option("--deleted", is_flag=True, help="Those that were deleted.")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="At most so many.")
@click.option("--cursor", help="Go on where an earlier listing ended.")
@with_output
def command(target: str, output: Output, **filters: Any) -> None:
    """List runs, newest first."""
    for name in ("created_after", "created_before"):
        filters[name] = _in_the_past(filters[name])
    filters["status"] = [Status(one) for one in filters["status"]] or None
    page, unserved = asyncio.run(_list(target, filters))
    if output.json:
        runs = [{**run_document(run), "unserved": run.id in unserved} for run in page.runs]
        output.document({"runs": runs, "cursor": page.cursor})
    else:
        _show(output, page, unserved)


async def _list(target: str, filters: dict[str, Any]) -> tuple[RunPage, set[str]]:
    async with engine_at(target) as engine:
        page = await engine.list(**filters)
        return page, await engine.unserved(page.runs)


def _in_the_past(value: datetime.datetime | datetime.timedelta | None) -> datetime.datetime | None:
    return datetime.datetime.now(datetime.UTC) - value if isinstance(value, datetime.timedelta) else value


def _show(output: Output, page: RunPage, unserved: set[str]) -> None:
    if not page.runs:
        output.hint("No runs.")
        return
    rows = [
        (run.id, run.type, stands, run.queue, when(run.created_at), when(run.finished_at))
        for run in page.runs
        for stands in (f"{status(run)}: unserved" if run.id in unserved else status(run),)
    ]
    output.table(("id", "type", "status", "queue", "created", "finished"), rows, lambda row: status_style(row[2]))
    if page.cursor is not None:
        output.hint(f"There are more: --cursor {page.cursor}")
