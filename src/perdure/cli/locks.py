"""`perdure locks`: named locks and their holders."""

from __future__ import annotations

import click
import msgspec

from perdure.cli.console.command_groups import Command, CommandGroup
from perdure.cli.console.describe import when
from perdure.cli.console.output import Printer
from perdure.cli.console.params import with_output, with_reason, with_target
from perdure.cli.console.target import with_engine

group = CommandGroup(
    "locks",
    {"Commands": {"list": "perdure.cli.locks:list_locks", "release": "perdure.cli.locks:release"}},
    help="List held locks, and release one by force.",
    example="perdure locks list sqlite:///shop.db",
)


@click.command("list", cls=Command, example="perdure locks list sqlite:///shop.db")
@with_target
@click.option("--limit", default=100, show_default=True, help="Maximum number of locks.")
@click.option("--after", default="", metavar="NAME", help="After this name.")
@with_output
def list_locks(target: str, limit: int, after: str, output: Printer) -> None:
    """List held locks by name, with holder and expiry."""
    found = with_engine(target, lambda engine: engine.locks.list(limit=limit, after=after))
    if output.json:
        output.document([msgspec.to_builtins(lock) for lock in found])
    elif found:
        rows = [(lock.name, lock.owner, when(lock.acquired_at), when(lock.expires_at)) for lock in found]
        output.table(("lock", "holder", "held since", "expires"), rows)
    else:
        output.hint("No lock is held.")


@click.command("release", cls=Command, example="perdure locks release sqlite:///shop.db import --force")
@with_target
@click.argument("name")
@click.option("--force", is_flag=True, help="Confirm that the holder is gone for good.")
@with_reason
@with_output
def release(target: str, name: str, force: bool, reason: str, output: Printer) -> None:
    """Release a lock that its holder cannot release any more."""
    if not force:
        raise click.UsageError("the holder may still rely on the lock; give --force if it is gone for good")
    done = with_engine(target, lambda engine: engine.locks.force_release(name, reason))
    output.result({"name": name, "released": done}, f"{name} is released." if done else f"{name} is not held.")
