"""`perdure events`: sticky events, which runs wait for by name."""

from __future__ import annotations

from typing import Any

import click

from perdure.cli.console.command_groups import Command, CommandGroup
from perdure.cli.console.describe import short, when
from perdure.cli.console.document import Document, moment
from perdure.cli.console.output import Printer, dump
from perdure.cli.console.params import JsonParam, with_output, with_reason, with_target
from perdure.cli.console.target import with_engine
from perdure.client.engine import Engine
from perdure.core.model.events import StickyEvent

group = CommandGroup(
    "events",
    {
        "Commands": {
            "list": "perdure.cli.live.events:list_events",
            "emit": "perdure.cli.live.events:emit",
            "get": "perdure.cli.live.events:get",
            "delete": "perdure.cli.live.events:delete",
        }
    },
    help="Emit, read and delete sticky events, which runs wait for with ctx.event.",
    example="perdure events emit sqlite:///shop.db fx-rates-2026-11-18 '{\"EUR\": 1.1}'",
)


@click.command("list", cls=Command, example="perdure events list sqlite:///shop.db --prefix fx-")
@with_target
@click.option("--prefix", default="", metavar="TEXT", help="Only names that begin with this.")
@click.option("--limit", type=click.IntRange(1, 1000), default=100, show_default=True, help="Maximum number of events.")
@with_output
def list_events(target: str, prefix: str, limit: int, output: Printer) -> None:
    """List sticky events that were emitted, the latest first."""
    found = with_engine(target, lambda engine: engine.events.list(prefix=prefix, limit=limit))
    if output.json:
        output.document([_document(one) for one in found])
    elif found:
        output.table(("name", "emitted", "value"), [(one.name, when(one.at), short(dump(one.value))) for one in found])
    else:
        output.hint("No sticky event was emitted.")


@click.command("emit", cls=Command, example="perdure events emit sqlite:///shop.db fx-rates '{\"EUR\": 1.1}'")
@with_target
@click.argument("name")
@click.argument("value", metavar="JSON", type=JsonParam())
@click.option("--replace", is_flag=True, help="Replace a value that was emitted before.")
@with_output
def emit(target: str, name: str, value: Any, replace: bool, output: Printer) -> None:
    """Emit a sticky event; without --replace, its first value stays."""
    emitted = with_engine(target, lambda engine: engine.events.emit(name, value, replace=replace), create=True)
    kept = f"{name} was emitted before with another value, which stays; --replace replaces it."
    output.result({"name": name, "emitted": emitted}, f"Emitted {name}." if emitted else kept)
    if not emitted:
        click.get_current_context().exit(1)


@click.command("get", cls=Command, example="perdure events get sqlite:///shop.db fx-rates --timeout 5m")
@with_target
@click.argument("name")
@click.option("--timeout", metavar="DURATION", help="Wait for the event, at most so long.")
@with_output
def get(target: str, name: str, timeout: str | None, output: Printer) -> None:
    """Print the value of a sticky event."""

    async def act(engine: Engine) -> StickyEvent | None:
        if timeout is not None:
            await engine.events.wait(name, timeout=timeout)
        return await engine.events.get(name)

    found = with_engine(target, act)
    if found is None:
        output.result({"name": name, "emitted": False}, f"{name} was not emitted.")
        click.get_current_context().exit(1)
    else:
        output.result({**_document(found), "emitted": True}, dump(found.value))


@click.command("delete", cls=Command, example="perdure events delete sqlite:///shop.db fx-rates")
@with_target
@click.argument("name")
@with_reason
@with_output
def delete(target: str, name: str, reason: str, output: Printer) -> None:
    """Delete a sticky event for good; it can be emitted and waited for anew."""
    deleted = with_engine(target, lambda engine: engine.events.delete(name, reason))
    output.result({"name": name, "deleted": deleted}, f"Deleted {name}." if deleted else f"{name} was not emitted.")


def _document(event: StickyEvent) -> Document:
    return {"name": event.name, "value": event.value, "at": moment(event.at)}
