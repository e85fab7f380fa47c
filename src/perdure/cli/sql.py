"""`perdure sql`: the statements by which programs without Perdure take part."""

from __future__ import annotations

import click

from perdure.cli.output import Output
from perdure.cli.params import with_output
from perdure.store.mysql.dialect import MYSQL
from perdure.store.plain_sql import NAMES, statement
from perdure.store.postgres.dialect import POSTGRES
from perdure.store.sql.dialect import DEFAULT_PREFIX
from perdure.store.sqlite.connection import SQLITE

DATABASES = {"sqlite": SQLITE, "postgresql": POSTGRES, "mysql": MYSQL}


@click.command("sql")
@click.argument("name", required=False, type=click.Choice(NAMES))
@click.option("--database", type=click.Choice(list(DATABASES)), default="sqlite", show_default=True)
@click.option(
    "--tables",
    default=DEFAULT_PREFIX,
    show_default=True,
    help="How the names of the tables begin, such as ops.perdure_",
)
@with_output
def command(name: str | None, database: str, tables: str, output: Output) -> None:
    """Print the statements for producers, and for workers in other languages; all of them, or one.

    Each says what goes in and what comes out.

    For example: perdure sql claim --database postgresql
    """
    found = [statement(DATABASES[database], one, tables) for one in ((name,) if name else NAMES)]
    if output.json:
        output.document([{"name": one.name, "version": one.version, "sql": one.text} for one in found])
        return
    for line in "\n".join(one.text for one in found).splitlines():
        output.line(line)
