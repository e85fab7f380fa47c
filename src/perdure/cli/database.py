"""`perdure migrate` and `perdure sql`: tables, and statements for programs in other languages."""

from __future__ import annotations

import asyncio

import click

from perdure.cli.console.command_groups import Command
from perdure.cli.console.describe import when
from perdure.cli.console.document import moment
from perdure.cli.console.output import Printer
from perdure.cli.console.params import with_output, with_target
from perdure.cli.console.target import check_exists, is_url, load_engine
from perdure.client.engine import Engine
from perdure.host import Host
from perdure.store import MigrationStatus, migration_script, migration_status
from perdure.store.plain_sql import NAMES, statement
from perdure.store.sql.dialect import DEFAULT_PREFIX, MYSQL, POSTGRES, SQLITE
from perdure.store.url import shown


@click.command("migrate", cls=Command, example="perdure migrate postgresql://localhost/shop --status")
@with_target
@click.option("--print", "mode", flag_value="print", help="Only print the SQL that creates the tables.")
@click.option("--status", "mode", flag_value="status", help="Only print the applied migrations.")
@with_output
def migrate(target: str, mode: str | None, output: Printer) -> None:
    """Create or update the tables of a database.

    It may be repeated, and run by several processes at once.
    """
    url = target if is_url(target) else load_engine(target).url
    if mode == "print":
        _print_script(url, output)
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


def _print_script(url: str, output: Printer) -> None:
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


DATABASES = {"sqlite": SQLITE, "postgresql": POSTGRES, "mysql": MYSQL}


@click.command("sql", cls=Command, example="perdure sql claim --database postgresql")
@click.argument("name", required=False, type=click.Choice(NAMES))
@click.option("--database", type=click.Choice(list(DATABASES)), default="sqlite", show_default=True, help="Dialect.")
@click.option(
    "--tables",
    default=DEFAULT_PREFIX,
    show_default=True,
    help="Prefix of the table names, such as ops.perdure_",
)
@with_output
def sql(name: str | None, database: str, tables: str, output: Printer) -> None:
    """Print the SQL statements for producers and workers in other languages.

    Comments in each statement describe its parameters and its result. Without NAME, print all statements.
    """
    found = [statement(DATABASES[database], one, tables) for one in ((name,) if name else NAMES)]
    if output.json:
        output.document([{"name": one.name, "version": one.version, "sql": one.text} for one in found])
        return
    for line in "\n".join(one.text for one in found).splitlines():
        output.line(line)
