"""`perdure workers`: the workers, and the errors of their background loops."""

from __future__ import annotations

import asyncio

import click
import msgspec

from perdure.cli.output import Output
from perdure.cli.params import with_output, with_target
from perdure.cli.target import engine_at
from perdure.core.model.worker_info import WorkerInfo


@click.command("workers")
@with_target
@with_output
def command(target: str, output: Output) -> None:
    """List the workers that are alive or were lately, with the errors that their background loops have met."""
    workers = asyncio.run(_workers(target))
    if output.json:
        output.document([msgspec.to_builtins(worker) for worker in workers])
        return
    for worker in workers:
        errors = f", {worker.errors} errors in the background" if worker.errors else ""
        output.line(f"{worker.id} {worker.status} on {worker.host} ({worker.pid}), {worker.slots} slots{errors}")
        if worker.problem:
            output.line(f"  {worker.problem}")
    if not workers:
        output.line("No worker is known.")


async def _workers(target: str) -> list[WorkerInfo]:
    async with engine_at(target) as engine:
        return await engine.workers()
