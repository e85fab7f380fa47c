"""`perdure prune`: delete runs for good that have been over for long enough."""

from __future__ import annotations

import asyncio

import click

from perdure.cli.output import Output
from perdure.cli.params import with_output, with_target
from perdure.cli.target import engine_at
from perdure.client.dead_letters import Deleted
from perdure.core.model.run import FINISHED


@click.command("prune")
@with_target
@click.option("--older-than", required=True, help="Over for longer than this, such as 30d.")
@click.option(
    "--status", multiple=True, type=click.Choice(sorted(one.value for one in FINISHED)), help="With this outcome."
)
@click.option("--type", "types", multiple=True, help="Of this type, or of types that begin like this: 'billing.%'.")
@click.option("--deleted", is_flag=True, help="Only those that were deleted, and longer ago than that.")
@with_output
def command(
    target: str, older_than: str, status: tuple[str, ...], types: tuple[str, ...], deleted: bool, output: Output
) -> None:
    """Delete finished runs for good, with their histories, messages, outputs and events. Families go together."""
    gone = asyncio.run(_prune(target, older_than, status, types, deleted))
    if output.json:
        output.document({"deleted": gone.runs, "spared": gone.spared})
    else:
        spared = f"; {gone.spared} are left, because runs above or below them are not over" if gone.spared else ""
        output.line(f"{gone.runs} runs are deleted{spared}.")


async def _prune(
    target: str, older_than: str, status: tuple[str, ...], types: tuple[str, ...], deleted: bool
) -> Deleted:
    async with engine_at(target) as engine:
        return await engine.prune(older_than, status=status or None, types=types or None, deleted=deleted)
