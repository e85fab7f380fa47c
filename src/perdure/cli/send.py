"""`perdure send`: a message to a run."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from perdure.cli.output import Output
from perdure.cli.params import Json, with_output, with_target
from perdure.cli.target import engine_at


@click.command("send")
@with_target
@click.argument("run")
@click.argument("name")
@click.argument("value", metavar="JSON", type=Json())
@click.option("--key", help="With a key, sending twice is sending once.")
@with_output
def command(target: str, run: str, name: str, value: Any, key: str | None, output: Output) -> None:
    """Send a message to a run; it is kept until the run receives it.

    For example: perdure send sqlite:///shop.db order-42 approval true
    """
    asyncio.run(_send(target, run, name, value, key))
    if output.json:
        output.document({"id": run, "name": name, "sent": True})
    else:
        output.line(f"Sent {name} to {run}.")


async def _send(target: str, run_id: str, name: str, value: Any, key: str | None) -> None:
    async with engine_at(target) as engine:
        await engine.send(run_id, name, value, key=key)
