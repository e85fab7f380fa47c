"""`perdure broadcast`: a message to every run that listens for it."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from perdure.cli.output import Output
from perdure.cli.params import Json, with_output, with_target
from perdure.cli.target import engine_at


@click.command("broadcast")
@with_target
@click.argument("name")
@click.argument("value", metavar="JSON", type=Json())
@click.option("--correlation", required=True, help="The correlation value that the runs listen for.")
@click.option("--key", help="With a key, no run gets it twice.")
@with_output
def command(target: str, name: str, value: Any, correlation: str, key: str | None, output: Output) -> None:
    """Send a message to every run that listens for a name and a correlation value.

    For example: perdure broadcast sqlite:///shop.db alarm '"fire"' --correlation ritz
    """
    sent = asyncio.run(_broadcast(target, name, value, correlation, key))
    if output.json:
        output.document({"name": name, "correlation": correlation, "sent": sent})
    else:
        output.line(f"{sent} {'run has' if sent == 1 else 'runs have'} {name}.")


async def _broadcast(target: str, name: str, value: Any, correlation: str, key: str | None) -> int:
    async with engine_at(target) as engine:
        return await engine.broadcast(name, value, correlation=correlation, key=key)
