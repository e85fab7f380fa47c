"""`perdure audit`: the audit trail of all runs."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from perdure.cli.console.command_groups import Command, CommandGroup
from perdure.cli.console.describe import short, when
from perdure.cli.console.document import Document, event_document
from perdure.cli.console.output import Printer
from perdure.cli.console.params import TimeParam, in_the_past, with_output, with_target
from perdure.cli.console.target import engine_at, with_engine
from perdure.core.audit import Event
from perdure.core.time.duration import microseconds

group = CommandGroup(
    "audit",
    {
        "Commands": {
            "list": "perdure.cli.audit:list_events",
            "prune": "perdure.cli.audit:prune",
            "checks": "perdure.cli.replay.deploy:checks",
        }
    },
    help="List, follow and prune the events of the audit trail; list deploy checks.",
    example="perdure audit sqlite:///shop.db --kind failed --since 1h",
)


@click.command("list", cls=Command, example="perdure audit list sqlite:///shop.db --kind failed --since 1h")
@with_target
@click.option("--run", metavar="RUN", help="Of this run.")
@click.option("--kind", multiple=True, help="Of this kind, such as failed.")
@click.option("--type", help="Of runs of this type.")
@click.option("--actor", help="Caused by this worker or client.")
@click.option("--since", type=TimeParam(), help="Not before this time, or within this duration.")
@click.option("--until", type=TimeParam(), help="Before this time, or longer ago than this.")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="Maximum number of events.")
@click.option("--cursor", type=int, help="Continue where an earlier list ended.")
@click.option("--follow", is_flag=True, help="Print oldest first and wait for more.")
@with_output
def list_events(target: str, output: Printer, limit: int, cursor: int | None, follow: bool, **filters: Any) -> None:
    """List events of all runs, newest first."""
    for name in ("since", "until"):
        filters[name] = in_the_past(filters[name])
    filters["kind"] = filters["kind"] or None
    asyncio.run(_list(target, output, limit, cursor, follow, filters))


async def _list(
    target: str, output: Printer, limit: int, cursor: int | None, follow: bool, filters: dict[str, Any]
) -> None:
    async with engine_at(target) as engine:
        page = await engine.audit.list(limit=limit, cursor=cursor, **filters)
        if follow:
            for event in reversed(page.events):
                _print_event(output, event)
            last = page.events[0].id if page.events else None
            async for event in engine.audit.follow(after=last, **filters):
                _print_event(output, event)
        elif output.json:
            output.document({"events": [_document(event) for event in page.events], "cursor": page.cursor})
        elif page.events:
            output.table(("id", "time", "event", "run", "by", "data"), [_row(event) for event in page.events])
            if page.cursor is not None:
                output.hint(f"There are more: --cursor {page.cursor}")
        else:
            output.hint("No events.")


def _print_event(output: Printer, event: Event) -> None:
    output.result(_document(event), "  ".join(_row(event)))


def _document(event: Event) -> Document:
    return {"run": event.run_id, **event_document(event)}


def _row(event: Event) -> tuple[str, ...]:
    return str(event.id), when(event.at), event.kind, event.run_id, event.actor, short(event.data)


@click.command("prune", cls=Command, example="perdure audit prune sqlite:///shop.db --older-than 90d")
@with_target
@click.option("--older-than", required=True, metavar="DURATION", help="Older than this, such as 30d.")
@with_output
def prune(target: str, older_than: str, output: Printer) -> None:
    """Delete old events; runs stay as they are."""
    microseconds(older_than)
    deleted = with_engine(target, lambda engine: engine.audit.prune(older_than))
    output.result({"deleted": deleted}, f"{deleted:,} events older than {older_than} deleted.")
