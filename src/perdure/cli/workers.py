"""Commands about workers and the types that they serve."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from typing import Any

import click
import msgspec

from perdure.cli.console import logs
from perdure.cli.console.output import Output
from perdure.cli.console.params import with_output, with_target
from perdure.cli.console.process import fast_loop, tune_collector
from perdure.cli.console.target import engine_at, is_url, load_engine
from perdure.client.engine import Engine
from perdure.core.audit import Audit
from perdure.core.model.worker_info import WorkerInfo
from perdure.core.routing import TypeInfo
from perdure.store.url import shown


@click.command("worker")
@with_target
@click.option("--slots", type=int, default=500, show_default=True, help="Runs worked on at the same time.")
@click.option("--queue", "queues", multiple=True, default=("default",), show_default=True, help="A queue to take from.")
@click.option(
    "--types",
    multiple=True,
    help="A type to take, or the beginning of some and %: billing.%  [default: all of the engine]",
)
@click.option("--lease", default="15s", show_default=True, help="Without a sign of life for so long, others take over.")
@click.option("--grace", default="10s", show_default=True, help="How long steps may go on once asked to stop.")
@click.option("--processes", type=int, help="Processes for steps that want one.  [default: as many as processors]")
@click.option(
    "--wait-for-database",
    default="5m",
    show_default=True,
    help="How long to wait for a server that is away at the start.",
)
@click.option("--log-level", type=click.Choice(logs.LEVELS), default="info", show_default=True)
@click.option("--log-format", type=click.Choice(logs.FORMATS), help="How the log looks.  [default: json with --json]")
@click.option(
    "--audit", type=click.Choice([level.value for level in Audit]), help="How much of the audit trail to write."
)
@click.option("--stop-at-eof", is_flag=True, help="Stop too when standard input ends, as it does when a parent dies.")
@with_output
def worker(
    target: str,
    log_level: str,
    log_format: str | None,
    audit: str | None,
    stop_at_eof: bool,
    output: Output,
    **options: Any,
) -> None:
    """Work on the runs of an engine until SIGTERM or SIGINT.

    The first signal lets steps finish for the grace period; a second one does not wait for them.
    """
    if is_url(target):
        raise click.UsageError(f"A worker needs code: give an engine such as shop:engine instead of {target}.")
    logs.configure(log_level, json=output.json if log_format is None else log_format == "json")
    engine = load_engine(target)
    if audit is not None:
        engine.audit.level = Audit(audit)
    if stop_at_eof:
        threading.Thread(target=_stop_at_eof, name="perdure stdin", daemon=True).start()
    tune_collector()
    with asyncio.Runner(loop_factory=fast_loop()) as runner:
        runner.run(_work(engine, options, output))


async def _work(engine: Engine, options: dict[str, Any], output: Output) -> None:
    options["types"] = options["types"] or None
    worker = engine.worker(**options)
    try:
        await worker.connect()
        _say(output, "working", engine)
        await worker.run()
    finally:
        await engine.close()
    _say(output, "stopped", engine)


def _say(output: Output, event: str, engine: Engine) -> None:
    if output.json:
        types = sorted(engine.workflows)
        output.document({"event": event, "pid": os.getpid(), "url": shown(engine.url), "types": types})
    else:
        output.line(f"{event} on {shown(engine.url)} as process {os.getpid()}: {', '.join(sorted(engine.workflows))}")


def _stop_at_eof() -> None:
    while sys.stdin is not None and sys.stdin.buffer.read(4096):
        continue
    os.kill(os.getpid(), signal.SIGTERM)


@click.command("workers")
@with_target
@with_output
def list_workers(target: str, output: Output) -> None:
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
        return await engine.workers.list()


@click.command("types")
@with_target
@with_output
def list_types(target: str, output: Output) -> None:
    """List the types that workers have registered: who serves each, and whether it is enabled.

    A type is disabled with `perdure pause --type` and enabled with `perdure resume --type`.
    """
    types = asyncio.run(_types(target))
    if output.json:
        output.document([msgspec.to_builtins(one) for one in types])
        return
    for one in types:
        disabled = "" if one.enabled else ", disabled"
        output.line(
            f"{one.type} ({one.kind}, {one.runtime}{disabled}){f': {one.description}' if one.description else ''}"
        )
    if not types:
        output.line("No worker has registered a type yet.")


async def _types(target: str) -> list[TypeInfo]:
    async with engine_at(target) as engine:
        return await engine.queues.types()
