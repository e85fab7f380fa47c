"""The schema, as numbered files that are applied once and never change.

The database stores each file's number and checksum. A database with newer or different files is left alone:
`SchemaMismatch`. All missing files are applied in one transaction where the database allows it, so that of several
processes that start at once one applies them and the others find them applied.

Applying a file twice changes nothing. A file leaves in place what older versions use, so that their workers keep
running during and after a migration.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from functools import cache
from importlib import resources

from msgspec import Struct

from perdure.errors import SchemaMismatch, UsageError
from perdure.store.sql.dialect import DEFAULT_PREFIX, Dialect, Transaction

#: The number of a row that is no migration, but says that one is under way; where DDL cannot be part of a transaction.
IN_PROGRESS = 0

TABLE = """
CREATE TABLE IF NOT EXISTS perdure_migrations (
  version INTEGER NOT NULL PRIMARY KEY,
  name TEXT NOT NULL,
  checksum TEXT NOT NULL,
  applied_at BIGINT NOT NULL
)
"""

_APPLIED = """
SELECT version, name, checksum, applied_at
FROM perdure_migrations
WHERE version > 0
ORDER BY version
"""

_RECORD = """
INSERT INTO perdure_migrations (version, name, checksum, applied_at)
VALUES (:version, :name, :checksum, :now)
"""


#: For a script that may be run again.
_RECORD_ONCE = """
INSERT INTO perdure_migrations (version, name, checksum, applied_at)
SELECT {version}, '{name}', '{checksum}', {time}
FROM (SELECT 1 AS one) AS once
WHERE NOT EXISTS (SELECT 1 FROM perdure_migrations WHERE version = {version});
"""
#: MySQL lacks MariaDB's IF NOT EXISTS for columns and indexes. `migrate` ignores the errors; a script must check.
_ONLY_MARIADB = "/*M! IF NOT EXISTS */"
_ADDS = re.compile(
    r"CREATE INDEX /\*M! IF NOT EXISTS \*/ (?P<index>\w+) ON (?P<indexed>\w+)"
    r"|ALTER TABLE (?P<altered>\w+)\s+ADD COLUMN /\*M! IF NOT EXISTS \*/ (?P<column>\w+)"
)
_UNLESS_THERE = """SET @perdure = IF(
  EXISTS (
    SELECT 1 FROM information_schema.{kind}
    WHERE table_schema = DATABASE() AND table_name = '{table}' AND {column} = '{name}'
  ),
  'DO 0',
  '{statement}'
);
PREPARE perdure FROM @perdure;
EXECUTE perdure;
DEALLOCATE PREPARE perdure"""
#: SQLite has no ADD COLUMN IF NOT EXISTS, and nothing in its SQL decides whether a statement is executed.
_ON_SQLITE = """
-- Run this with the sqlite3 shell. Where a column exists, its statement fails ("duplicate column name") and changes
-- nothing, and the shell goes on.
""".lstrip()
_TIME_HERE = "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) * 1000"


#: A statement that makes an index, in these files: alone, in a CREATE TABLE of MySQL, or in an ALTER TABLE.
_INDEX = re.compile(
    r"CREATE (?P<unique>UNIQUE )?INDEX(?: IF NOT EXISTS| /\*M! IF NOT EXISTS \*/)? (?P<name>\w+)\s+ON (?P<table>\w+)"
    r"\s+(?P<rest>.+)",
    re.DOTALL,
)
_KEY = re.compile(r"^ +(?:ADD INDEX|(?P<unique>UNIQUE )?KEY) (?P<name>\w+) (?P<rest>\([^)]*\))", re.MULTILINE)
_TABLE_OF = re.compile(r"(?:CREATE TABLE IF NOT EXISTS|ALTER TABLE) (\w+)")


class Index(Struct, frozen=True, kw_only=True):
    """An index that the migrations make, and a statement that makes it again."""

    name: str
    statement: str


class Migration(Struct, frozen=True, kw_only=True):
    """One file."""

    version: int
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        """Of its text, whatever the prefix of the tables."""
        return hashlib.sha256(self.sql.encode()).hexdigest()

    @property
    def statements(self) -> list[str]:
        """Its statements; in these files a statement ends where a line ends with a semicolon."""
        return [statement.strip() for statement in self.sql.split(";\n") if statement.strip()]


class MigrationStatus(Struct, frozen=True, kw_only=True):
    """A file and when it was applied; 0: not yet."""

    version: int
    name: str
    applied_at: int


def known(dialect: Dialect) -> tuple[Migration, ...]:
    """The files that this version of Perdure has for a database, in order."""
    return _read(dialect.name)


@cache
def _read(dialect: str) -> tuple[Migration, ...]:
    folder = resources.files("perdure.store") / "migrations" / dialect
    names = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".sql"))
    return tuple(
        Migration(
            version=int(name.split("_", 1)[0]),
            name=name.removesuffix(".sql"),
            sql=(folder / name).read_text(encoding="utf-8"),
        )
        for name in names
    )


def script(dialect: Dialect, tables: str) -> str:
    """SQL of all migrations, to read or to run by hand. It may be run more than once."""
    schema = tables.rpartition(".")[0]
    parts = [f"CREATE SCHEMA IF NOT EXISTS {schema};\n"] if schema else []
    if dialect.name == "sqlite":
        parts.append(_ON_SQLITE)
    parts.append(dialect.render(f"{TABLE.strip()};\n", tables))
    for migration in known(dialect):
        record = _RECORD_ONCE.format(
            version=migration.version,
            name=migration.name,
            checksum=migration.checksum,
            time=dialect.time or _TIME_HERE,
        )
        statements = "".join(f"{_repeatable(statement)};\n\n" for statement in migration.statements)
        parts.append(f"-- {migration.name}\n{dialect.render(statements.rstrip() + record, tables)}")
    return "\n".join(parts)


def indexes(dialect: Dialect, tables: str) -> list[Index]:
    """List the indexes that a database has after all migrations, primary keys left out."""
    made: dict[str, str] = {}
    for statement in (statement for migration in known(dialect) for statement in migration.statements):
        table = _TABLE_OF.match(statement)
        if alone := _INDEX.match(statement):
            made[alone["name"]] = _make_index(alone, alone["table"])
        elif table is not None:
            made |= {key["name"]: _make_index(key, table[1]) for key in _KEY.finditer(statement)}
    prefix = tables.rpartition(".")[2]
    return [
        Index(name=name.replace(DEFAULT_PREFIX, prefix, 1), statement=dialect.render(statement, tables))
        for name, statement in made.items()
    ]


def _make_index(found: re.Match[str], table: str) -> str:
    unique = found.groupdict()["unique"] or ""
    return f"CREATE {unique}INDEX {found['name']} ON {table} {' '.join(found['rest'].split())}"


def _repeatable(statement: str) -> str:
    """A statement that may be run again, also on MySQL, where adding an existing column or index is an error."""
    if _ONLY_MARIADB not in statement:
        return statement
    adds = _ADDS.match(statement)
    assert adds is not None, f"a script cannot repeat this statement: {statement}"
    table, kind = (adds["indexed"], "statistics") if adds["index"] else (adds["altered"], "columns")
    column, name = ("index_name", adds["index"]) if adds["index"] else ("column_name", adds["column"])
    quoted = statement.replace("'", "''")
    return _UNLESS_THERE.format(kind=kind, table=table, column=column, name=name, statement=quoted)


async def migrate(
    tx: Transaction, dialect: Dialect, is_done: Callable[[Exception], bool] = lambda error: False
) -> list[Migration]:
    """Apply the missing migrations and return them.

    `is_done` recognises errors of statements that ran before a crash.
    """
    await tx.execute(TABLE, {})
    missing = _missing(known(dialect), await tx.fetch(_APPLIED, {}))
    for migration in missing:
        for statement in migration.statements:
            try:
                await tx.execute(statement, {})
            except Exception as error:
                if not is_done(error):
                    raise
        row = {"version": migration.version, "name": migration.name, "checksum": migration.checksum, "now": tx.now}
        await tx.execute(_RECORD, row)
    return missing


async def pending(tx: Transaction, dialect: Dialect, prefix: str) -> list[Migration]:
    """The missing migrations, without writing anything. Raises `SchemaMismatch` if the schema is not ours."""
    return _missing(known(dialect), await _applied(tx, dialect, prefix))


async def status(tx: Transaction, dialect: Dialect, prefix: str) -> list[MigrationStatus]:
    """Each file and when it was applied."""
    applied = await _applied(tx, dialect, prefix)
    _missing(known(dialect), applied)
    times = {row[0]: row[3] for row in applied}
    return [
        MigrationStatus(version=one.version, name=one.name, applied_at=times.get(one.version, 0))
        for one in known(dialect)
    ]


async def _applied(tx: Transaction, dialect: Dialect, prefix: str) -> Sequence[tuple[int, str, str, int]]:
    if not await tx.fetch(dialect.table_exists, {"name": f"{prefix}migrations"}):
        return []
    return await tx.fetch(_APPLIED, {})


def _missing(files: Sequence[Migration], applied: Sequence[tuple[int, str, str, int]]) -> list[Migration]:
    ours = {migration.version: migration for migration in files}
    done = set()
    for version, name, checksum, _ in applied:
        if version not in ours:
            raise SchemaMismatch(
                f"the database has migration {name}, which this version of Perdure does not know; install the version "
                "of Perdure that the database was last migrated with, or a newer one"
            )
        if ours[version].checksum != checksum:
            raise SchemaMismatch(
                f"migration {name} was applied to the database in another form than this version of Perdure has; use "
                "the release that the database was migrated with, or restore the original file"
            )
        done.add(version)
    return [migration for migration in files if migration.version not in done]


#: What there is, by name and whether it is a view; views before tables.
_THERE = {
    "sqlite": """
SELECT name, type = 'view' FROM sqlite_master
WHERE type IN ('view', 'table') AND substr(name, 1, length(:prefix)) = :prefix
ORDER BY 2 DESC, 1
""",
    "postgres": """
SELECT table_name, table_type = 'VIEW' FROM information_schema.tables
WHERE table_schema = COALESCE(NULLIF(:schema, ''), current_schema()) AND starts_with(table_name, :prefix)
ORDER BY 2 DESC, 1
""",
    "mysql": """
SELECT table_name, table_type = 'VIEW' FROM information_schema.tables
WHERE table_schema = DATABASE() AND BINARY LEFT(table_name, CHAR_LENGTH(:prefix)) = BINARY :prefix
ORDER BY 2 DESC, 1
""",
}


async def drop_tables(tx: Transaction, dialect: Dialect, tables: str) -> None:
    """Drop every table and view with that prefix.

    Raises `UsageError` for the default prefix, which may hold real runs.
    """
    schema, _, prefix = tables.rpartition(".")
    if prefix == DEFAULT_PREFIX:
        raise UsageError(f"tables that begin with {DEFAULT_PREFIX} are not dropped; they may hold real runs")
    for name, view in await tx.fetch(_THERE[dialect.name], {"schema": schema.strip('"'), "prefix": prefix}):
        place = f"{schema}.{name}" if schema else name
        await tx.execute(f"DROP {'VIEW' if view else 'TABLE'} {place}", {})
