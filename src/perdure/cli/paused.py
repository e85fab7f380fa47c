"""`perdure paused`: the types and queues that are paused."""

from __future__ import annotations

import asyncio

import click
import msgspec

from perdure.cli.output import Output
from perdure.cli.params import with_output, with_target
from perdure.cli.target import engine_at
from perdure.core.model.orders import Pause


@click.command("paused")
@with_target
@with_output
def command(target: str, output: Output) -> None:
    """List the types and queues that are paused; single runs say so themselves."""
    pauses = asyncio.run(_paused(target))
    if output.json:
        output.document([msgspec.to_builtins(pause) for pause in pauses])
        return
    for pause in pauses:
        output.line(f"{pause.kind} {pause.name}{f': {pause.reason}' if pause.reason else ''}")
    if not pauses:
        output.line("No type and no queue is paused.")


async def _paused(target: str) -> list[Pause]:
    async with engine_at(target) as engine:
        return await engine.paused()
