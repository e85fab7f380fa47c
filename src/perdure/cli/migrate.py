"""`perdure migrate`: the tables of a database."""

from __future__ import annotations

import asyncio

import click

from perdure.cli.describe import when
from perdure.cli.document import moment
from perdure.cli.output import Output
from perdure.cli.params import with_output, with_target
from perdure.cli.target import check_exists, is_url, load_engine
from perdure.client.engine import Engine
from perdure.host import Host
from perdure.store import MigrationStatus, migration_script, migration_status
from perdure.store.url import shown


@click.command("migrate")
@with_target
@click.option("--print", "mode", flag_value="print", help="Print the SQL that creates the tables, and run nothing.")
@click.option("--status", "mode", flag_value="status", help="Say what has been applied, and apply nothing.")
@with_output
def command(target: str, mode: str | None, output: Output) -> None:
    """Create or update the tables of a database. Safe to repeat, and safe while others do the same."""
    url = target if is_url(target) else load_engine(target).url
    if mode == "print":
        _print(url, output)
        return
    if mode == "status":
        check_exists(url)
        applied: list[MigrationStatus] = []
    else:
        applied = asyncio.run(_migrate(url))
    now = asyncio.run(migration_status(url, Host()))
    if output.json:
        output.document({"url": shown(url), "migrations": _documents(now), "applied": [one.name for one in applied]})
        return
    output.table(("version", "name", "applied"), [(str(m.version), m.name, when(m.applied_at) or "no") for m in now])
    if mode is None:
        output.hint(f"Applied now: {len(applied)}.")


def _print(url: str, output: Output) -> None:
    script = migration_script(url)
    if output.json:
        output.document({"url": shown(url), "sql": script})
    else:
        print(script)


async def _migrate(url: str) -> list[MigrationStatus]:
    before = await migration_status(url, Host())
    async with Engine(url, migrate=True):
        return [one for one in before if not one.applied_at]


def _documents(migrations: list[MigrationStatus]) -> list[dict[str, object]]:
    return [{"version": one.version, "name": one.name, "applied_at": moment(one.applied_at)} for one in migrations]
