"""Commands that hide, restore and delete finished runs."""

from __future__ import annotations

import asyncio

import click

from perdure.cli.console.output import Output
from perdure.cli.console.params import with_output, with_target
from perdure.cli.console.target import engine_at
from perdure.client.runs import PruneReport
from perdure.core.model.run import FINISHED


@click.command("delete")
@with_target
@click.argument("run")
@click.option("--because", default="", metavar="TEXT", help="Why, for the audit trail.")
@with_output
def delete(target: str, run: str, because: str, output: Output) -> None:
    """Hide a finished run from listings. Its result stays readable, and `perdure undelete` brings it back."""
    deleted = asyncio.run(_delete(target, run, because))
    if output.json:
        output.document({"id": run, "deleted": deleted})
    else:
        output.line(f"{run} is deleted." if deleted else f"{run} was deleted before.")


async def _delete(target: str, run_id: str, reason: str) -> bool:
    async with engine_at(target) as engine:
        return await engine.runs.delete(run_id, reason)


@click.command("undelete")
@with_target
@click.argument("run")
@with_output
def undelete(target: str, run: str, output: Output) -> None:
    """Bring a run back that was deleted or discarded."""
    restored = asyncio.run(_undelete(target, run))
    if output.json:
        output.document({"id": run, "restored": restored})
    else:
        output.line(f"{run} is back." if restored else f"{run} is not deleted.")


async def _undelete(target: str, run_id: str) -> bool:
    async with engine_at(target) as engine:
        return await engine.runs.undelete(run_id)


@click.command("prune")
@with_target
@click.option("--older-than", required=True, help="Over for longer than this, such as 30d.")
@click.option(
    "--status", multiple=True, type=click.Choice(sorted(one.value for one in FINISHED)), help="With this outcome."
)
@click.option("--type", "types", multiple=True, help="Of this type, or of types that begin like this: 'billing.%'.")
@click.option("--deleted", is_flag=True, help="Only those that were deleted, and longer ago than that.")
@with_output
def prune(
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
) -> PruneReport:
    async with engine_at(target) as engine:
        return await engine.runs.prune(older_than, status=status or None, types=types or None, deleted=deleted)
