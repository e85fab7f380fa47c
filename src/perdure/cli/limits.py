"""`perdure limits ...`: what holds at which gate, who waits there, and what to change at run time."""

from __future__ import annotations

import asyncio

import click
import msgspec

from perdure.cli.console.describe import when
from perdure.cli.console.document import Document, moment
from perdure.cli.console.output import Output
from perdure.cli.console.params import with_output, with_target
from perdure.cli.console.target import engine_at
from perdure.core.limits.limit import LimitInfo, make_bounds


@click.group("limits")
def command() -> None:
    """Limits of concurrency and rate: list them, and set or clear them at run time."""


@command.command("list")
@with_target
@click.option("--limit", default=100, show_default=True, help="How many at the most.")
@click.option("--after", default="", help="Past this name.")
@with_output
def list_(target: str, limit: int, after: str, output: Output) -> None:
    """List the limits that runs have met or that were set, by name."""
    found = asyncio.run(_list(target, limit, after))
    if output.json:
        output.document([_document(gate) for gate in found])
        return
    if not found:
        output.line("No run has met a limit, and none was set.")
        return
    rows = [
        (
            gate.name,
            "nothing: its row cannot be read" if gate.problem else str(gate.bounds),
            "run time" if gate.override else "code",
            str(gate.held),
            str(gate.waiting),
            when(gate.due_at) if gate.due_at else "",
        )
        for gate in found
    ]
    output.table(("LIMIT", "LETS PASS", "SET BY", "IN", "WAITING", "LOOKED AT"), rows)


@command.command("set")
@with_target
@click.argument("name")
@click.option("--concurrency", type=int, help="So many at once.")
@click.option("--rate", help="So many in so much time, such as 100/m.")
@click.option("--burst", type=int, help="With --rate: so many at once after a pause.")
@with_output
def set_(target: str, name: str, concurrency: int | None, rate: str | None, burst: int | None, output: Output) -> None:
    """Set what holds from now on, whatever the code says.

    NAME is a limit, one of its keys (tenant/acme), a type (type:billing.charge.v1) or a queue (queue:emails).
    """
    bounds = make_bounds(concurrency=concurrency, rate=rate, burst=burst)
    asyncio.run(_set(target, name, concurrency, rate, burst))
    if output.json:
        output.document({"name": name, "override": msgspec.to_builtins(bounds)})
    else:
        output.line(f"{name}: {bounds}.")


@command.command("clear")
@with_target
@click.argument("name")
@with_output
def clear(target: str, name: str, output: Output) -> None:
    """Let hold again what the code says."""
    asyncio.run(_clear(target, name))
    if output.json:
        output.document({"name": name, "override": None})
    else:
        output.line(f"{name}: what the code says holds again.")


def _document(gate: LimitInfo) -> Document:
    return {
        "name": gate.name,
        "bounds": msgspec.to_builtins(gate.bounds),
        "override": msgspec.to_builtins(gate.override),
        "held": gate.held,
        "waiting": gate.waiting,
        "due_at": moment(gate.due_at),
        "problem": gate.problem or None,
    }


async def _list(target: str, limit: int, after: str) -> list[LimitInfo]:
    async with engine_at(target) as engine:
        return await engine.limits.list(limit=limit, after=after)


async def _set(target: str, name: str, concurrency: int | None, rate: str | None, burst: int | None) -> None:
    async with engine_at(target) as engine:
        await engine.limits.set(name, concurrency=concurrency, rate=rate, burst=burst)


async def _clear(target: str, name: str) -> None:
    async with engine_at(target) as engine:
        await engine.limits.clear(name)
