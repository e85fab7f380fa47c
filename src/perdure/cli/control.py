"""Commands that steer single runs, types and queues."""

from __future__ import annotations

import asyncio
import datetime

import click
import msgspec

from perdure.cli.console.output import Output
from perdure.cli.console.params import Moment, what_of, with_output, with_target, with_what
from perdure.cli.console.target import engine_at
from perdure.core.model.orders import Pause


@click.command("cancel")
@with_target
@click.argument("run")
@click.option("--reason", default="", help="Why; kept with the run.")
@with_output
def cancel(target: str, run: str, reason: str, output: Output) -> None:
    """Ask a run to stop. Its workflow may clean up first."""
    accepted = asyncio.run(_cancel(target, run, reason))
    if output.json:
        output.document({"id": run, "cancelling": accepted})
    else:
        output.line(f"{run} was asked to stop." if accepted else f"{run} had finished already.")


async def _cancel(target: str, run_id: str, reason: str) -> bool:
    async with engine_at(target) as engine:
        return await engine.cancel(run_id, reason)


@click.command("pause")
@with_what
@click.option("--reason", default="", help="Why; shown to whoever asks.")
@with_output
def pause(names: tuple[str, ...], type_: str | None, queue: str | None, reason: str, output: Output) -> None:
    """Pause a run, all runs of a type, or all in a queue.

    A run ends the steps that are under way and then waits. Of a type or a queue no more runs are taken.

    For example: perdure pause sqlite:///shop.db --queue reports
    """
    target, what = what_of(names, type_, queue)
    done = asyncio.run(_pause(target, what, reason))
    [name] = what.values()
    if output.json:
        output.document({**what, "paused": done})
    else:
        output.line(f"{name} is paused." if done else f"{name} was paused already, or has finished.")


async def _pause(target: str, what: dict[str, str], reason: str) -> bool:
    async with engine_at(target) as engine:
        if "run_id" in what:
            return await engine.runs.pause(what["run_id"], reason)
        return await engine.queues.pause(queue=what.get("queue"), type=what.get("type"), reason=reason)


@click.command("resume")
@with_what
@with_output
def resume(names: tuple[str, ...], type_: str | None, queue: str | None, output: Output) -> None:
    """Let a run, all runs of a type, or all in a queue go on that were paused."""
    target, what = what_of(names, type_, queue)
    done = asyncio.run(_resume(target, what))
    [name] = what.values()
    if output.json:
        output.document({**what, "resumed": done})
    else:
        output.line(f"{name} goes on." if done else f"{name} was not paused.")


async def _resume(target: str, what: dict[str, str]) -> bool:
    async with engine_at(target) as engine:
        if "run_id" in what:
            return await engine.runs.resume(what["run_id"])
        return await engine.queues.resume(queue=what.get("queue"), type=what.get("type"))


@click.command("paused")
@with_target
@with_output
def list_paused(target: str, output: Output) -> None:
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
        return await engine.queues.paused()


@click.command("evict")
@with_target
@click.argument("run")
@with_output
def evict(target: str, run: str, output: Output) -> None:
    """Have a run given back by the worker that holds it, and taken by another if there is one.

    Steps that are under way may end first, for as long as that worker's grace lasts.
    """
    held = asyncio.run(_evict(target, run))
    if output.json:
        output.document({"id": run, "evicted": held})
    else:
        output.line(f"{run} is about to be given back." if held else f"{run} is in no worker's hands.")


async def _evict(target: str, run_id: str) -> bool:
    async with engine_at(target) as engine:
        return await engine.runs.evict(run_id)


@click.command("wake")
@with_target
@click.argument("run")
@click.option("--at", type=Moment(), help="When; now if left out.")
@with_output
def wake(target: str, run: str, at: datetime.datetime | datetime.timedelta | None, output: Output) -> None:
    """Let the sleep that a run is in end at another time; or begin a run that was to begin later."""
    asyncio.run(_wake(target, run, at))
    if output.json:
        output.document({"id": run, "woken": True})
    else:
        output.line(f"{run} is woken{' then' if at is not None else ''}.")


async def _wake(target: str, run_id: str, at: datetime.datetime | datetime.timedelta | None) -> None:
    async with engine_at(target) as engine:
        await engine.runs.wake(run_id, at)
