"""`perdure events`: what happened, over all runs; `perdure events prune`: forgetting what is old."""

from __future__ import annotations

import asyncio
import datetime
from typing import Any

import click

from perdure.cli.console.describe import short, when
from perdure.cli.console.document import event_document
from perdure.cli.console.output import Output
from perdure.cli.console.params import Moment, with_output, with_target
from perdure.cli.console.target import engine_at
from perdure.core.audit import Event
from perdure.core.time.duration import microseconds

_COLUMNS = ("id", "time", "event", "run", "by", "data")


class Listing(click.Group):
    """A group whose first command needs no name."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the command line."""
        named = bool(args) and (args[0] in self.commands or args[0] in ctx.help_option_names)
        return super().parse_args(ctx, args if named else ["list", *args])


@click.group("events", cls=Listing)
def command() -> None:
    """List what happened, or forget what is old.

    Without a command it lists: `perdure events shop:engine --kind failed --since 1h`.
    """


@command.command("list")
@with_target
@click.option("--run", metavar="RUN", help="Of this run.")
@click.option("--kind", multiple=True, help="Of this kind, such as failed.")
@click.option("--type", help="Of runs of this type.")
@click.option("--actor", help="Caused by this worker or client.")
@click.option("--since", type=Moment(), help="Not before this time, or within this duration.")
@click.option("--until", type=Moment(), help="Before this time, or longer ago than this.")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="At most so many.")
@click.option("--cursor", type=int, help="Go on where an earlier listing ended.")
@click.option("--follow", is_flag=True, help="Wait for more; the newest come last then.")
@with_output
def list_events(target: str, output: Output, limit: int, cursor: int | None, follow: bool, **filters: Any) -> None:
    """List the audit trail, newest first."""
    for name in ("since", "until"):
        if isinstance(filters[name], datetime.timedelta):
            filters[name] = datetime.datetime.now(datetime.UTC) - filters[name]
    filters["kind"] = filters["kind"] or None
    asyncio.run(_list(target, output, limit, cursor, follow, filters))


async def _list(
    target: str, output: Output, limit: int, cursor: int | None, follow: bool, filters: dict[str, Any]
) -> None:
    async with engine_at(target) as engine:
        page = await engine.audit.list(limit=limit, cursor=cursor, **filters)
        if follow:
            for event in reversed(page.events):
                _show_one(output, event)
            last = page.events[0].id if page.events else None
            async for event in engine.audit.follow(after=last, **filters):
                _show_one(output, event)
        elif output.json:
            output.document({"events": [_document(event) for event in page.events], "cursor": page.cursor})
        elif page.events:
            output.table(_COLUMNS, [_row(event) for event in page.events])
            if page.cursor is not None:
                output.hint(f"There are more: --cursor {page.cursor}")
        else:
            output.hint("No events.")


def _show_one(output: Output, event: Event) -> None:
    if output.json:
        output.document(_document(event))
    else:
        output.line("  ".join(_row(event)))


def _document(event: Event) -> dict[str, object]:
    return {"run": event.run_id, **event_document(event)}


def _row(event: Event) -> tuple[str, ...]:
    return str(event.id), when(event.at), event.kind, event.run_id, event.actor, short(event.data)


@command.command("prune")
@with_target
@click.option("--older-than", required=True, help="What is older than this duration, such as 30d.")
@with_output
def prune(target: str, older_than: str, output: Output) -> None:
    """Delete old events. Runs are left as they are."""
    microseconds(older_than)
    deleted = asyncio.run(_prune(target, older_than))
    if output.json:
        output.document({"deleted": deleted})
    else:
        output.line(f"{deleted:,} events older than {older_than} deleted")


async def _prune(target: str, older_than: str) -> int:
    async with engine_at(target) as engine:
        return await engine.audit.prune(older_than)
