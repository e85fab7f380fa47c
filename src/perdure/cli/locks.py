"""`perdure locks ...`: named locks, and who holds them."""

from __future__ import annotations

import asyncio

import click
import msgspec

from perdure.cli.console.describe import when
from perdure.cli.console.output import Output
from perdure.cli.console.params import with_output, with_target
from perdure.cli.console.target import engine_at
from perdure.core.model.lock import LockInfo


@click.group("locks")
def command() -> None:
    """Named locks: list those that somebody holds, or take one from its holder."""


@command.command("list")
@with_target
@click.option("--limit", default=100, show_default=True, help="How many at the most.")
@click.option("--after", default="", help="Past this name.")
@with_output
def list_(target: str, limit: int, after: str, output: Output) -> None:
    """List the locks that somebody holds, by name."""
    found = asyncio.run(_list(target, limit, after))
    if output.json:
        output.document([msgspec.to_builtins(lock) for lock in found])
        return
    for lock in found:
        output.line(f"{lock.name}: {lock.owner}, since {when(lock.acquired_at)}, until {when(lock.expires_at)}")
    if not found:
        output.line("Nobody holds a lock.")


@command.command("release")
@with_target
@click.argument("name")
@click.option("--force", is_flag=True, help="Although its holder may still count on it.")
@with_output
def release(target: str, name: str, force: bool, output: Output) -> None:
    """Take a lock from whoever holds it, if that is gone for good."""
    if not force:
        raise click.UsageError("its holder may still count on it; say --force if that is gone for good")
    done = asyncio.run(_release(target, name))
    if output.json:
        output.document({"name": name, "released": done})
    else:
        output.line(f"{name} is free." if done else f"Nobody holds {name}.")


async def _list(target: str, limit: int, after: str) -> list[LockInfo]:
    async with engine_at(target) as engine:
        return await engine.locks.list(limit=limit, after=after)


async def _release(target: str, name: str) -> bool:
    async with engine_at(target) as engine:
        return await engine.locks.force_release(name)
