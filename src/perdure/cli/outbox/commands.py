"""Commands that publish, list, show and replay events for other systems."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from perdure.cli.console.command_groups import Command, CommandGroup
from perdure.cli.console.describe import error, short, status
from perdure.cli.console.document import Document, failure
from perdure.cli.console.output import Printer, dump
from perdure.cli.console.params import JsonParam, with_output, with_target
from perdure.cli.console.target import with_engine
from perdure.client.engine import Engine
from perdure.core.model.cloud_event import DELIVERY_PREFIX, PublishedEvent
from perdure.core.model.run import Run

group = CommandGroup(
    "outbox",
    {
        "Commands": {
            "list": "perdure.cli.outbox.commands:list_events",
            "show": "perdure.cli.outbox.commands:show",
            "publish": "perdure.cli.outbox.commands:publish",
            "replay": "perdure.cli.outbox.commands:replay",
        }
    },
    help="""Publish, list and replay events for other systems.

    Deliveries that failed for good are dead letters: perdure dead-letters list --type 'perdure.delivery.%'.
    """,
    example="perdure outbox sqlite:///shop.db --type 'order.%'",
)


@click.command("list", cls=Command, example="perdure outbox list sqlite:///shop.db --key order-42")
@with_target
@click.option("--type", "type_", help="Of this type, or of types with a prefix: 'order.%'.")
@click.option("--key", help="Of this key.")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="Maximum number of events.")
@click.option("--cursor", help="Continue where an earlier list ended.")
@with_output
def list_events(
    target: str, type_: str | None, key: str | None, limit: int, cursor: str | None, output: Printer
) -> None:
    """List published events, the latest first."""
    page = with_engine(target, lambda engine: engine.outbox.list(type=type_, key=key, limit=limit, cursor=cursor))
    if output.json:
        output.document({"events": [_document(one) for one in page.events], "cursor": page.cursor})
        return
    if not page.events:
        output.hint("No events.")
        return
    output.table(("id", "type", "key", "source", "time", "status", "deliveries"), [_row(one) for one in page.events])
    if page.cursor is not None:
        output.hint(f"There are more: --cursor {page.cursor}")


@click.command("show", cls=Command, example="perdure outbox show sqlite:///shop.db paid-42")
@with_target
@click.argument("event")
@with_output
def show(target: str, event: str, output: Printer) -> None:
    """Show an event and its deliveries."""

    async def act(engine: Engine) -> tuple[PublishedEvent, list[Run]]:
        return await engine.outbox.get(event), await engine.outbox.deliveries(event)

    found, deliveries = with_engine(target, act)
    if output.json:
        output.document({**_document(found), "deliveries": [_delivery(run) for run in deliveries]})
        return
    output.line(f"{found.event.id}  {found.event.type}", "bold")
    output.fields(
        [
            ("source", found.event.source),
            ("subject", found.event.subject or ""),
            ("key", found.event.partitionkey or ""),
            ("time", _time(found)),
            ("data", short(dump(found.event.data))),
            ("run", found.run_id),
        ]
    )
    output.heading("Deliveries")
    if not deliveries:
        output.hint("None: no worker has handed it on yet, or no subscription wants it.")
        return
    rows = [(_name(run), status(run), str(run.attempt), run.id, error(run.error)) for run in deliveries]
    output.table(("subscription", "status", "attempt", "run", "error"), rows)


@click.command("publish", cls=Command, example="perdure outbox publish sqlite:///shop.db order.paid 42 --key order-42")
@with_target
@click.argument("type_", metavar="TYPE")
@click.argument("data", metavar="JSON", type=JsonParam())
@click.option("--key", help="Events of a key are delivered in order.")
@click.option("--subject", help="Subject of the event.")
@click.option("--source", default="perdure", show_default=True, help="Source of the event.")
@click.option("--id", "id_", help="Id of the event: an event with the same id is published once.")
@with_output
def publish(target: str, type_: str, data: Any, id_: str | None, output: Printer, **options: Any) -> None:
    """Publish an event."""
    published = with_engine(target, lambda engine: engine.outbox.publish(type_, data, id=id_, **options))
    output.result({"id": published, "type": type_}, f"Published {type_} as {published}.")


@click.command("replay", cls=Command, example="perdure outbox replay sqlite:///shop.db paid-42 --to billing")
@with_target
@click.argument("event")
@click.option("--to", metavar="NAME", help="Only to this subscription.")
@with_output
def replay(target: str, event: str, to: str | None, output: Printer) -> None:
    """Deliver an event again."""
    [run_id] = with_engine(target, lambda engine: engine.outbox.replay(event, to=to))
    whom = f"to {to}" if to else "to all subscriptions that want it"
    output.result({"id": event, "run_id": run_id, "to": to}, f"{event}: is delivered again {whom}, by run {run_id}.")


def _document(one: PublishedEvent) -> Document:
    return {
        "event": msgspec.json.decode(one.event.to_json()),
        "run_id": one.run_id,
        "status": one.status.value,
        "deliveries": list(one.deliveries),
    }


def _delivery(run: Run) -> Document:
    return {
        "subscription": _name(run),
        "run_id": run.id,
        "status": run.status.value,
        "attempt": run.attempt,
        "error": failure(run.error),
    }


def _row(one: PublishedEvent) -> tuple[str, ...]:
    event = one.event
    handed_on = str(len(one.deliveries)) if one.status.finished else ""
    return event.id, event.type, event.partitionkey or "", event.source, _time(one), one.status.value, handed_on


def _name(run: Run) -> str:
    return run.type.removeprefix(DELIVERY_PREFIX)


def _time(one: PublishedEvent) -> str:
    return "" if one.event.time is None else one.event.time.isoformat(" ", "seconds")
