"""The schema as the database describes it, in terms that all databases share."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from typing import Any

from msgspec import Struct

#: Column types, by their names in each database.
KINDS = {
    "integer": "whole number",
    "bigint": "whole number",
    "smallint": "whole number",
    "text": "text",
    "varchar": "text",
    "longtext": "text",
    "int": "whole number",
    "real": "number",
    "double": "number",
    "double precision": "number",
}

PG_COLUMNS = """
SELECT c.relname, a.attname, format_type(a.atttypid, NULL), NOT a.attnotnull, a.atthasdef OR a.attidentity <> ''
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
WHERE c.relnamespace = $1::text::regnamespace AND c.relkind = 'r' AND a.attnum > 0 AND NOT a.attisdropped
"""

PG_INDEXES = """
SELECT t.relname, i.relname, x.indisprimary, x.indisunique, ARRAY(
  SELECT a.attname::text FROM unnest(x.indkey::int[]) WITH ORDINALITY AS k (number, place)
  JOIN pg_attribute a ON a.attrelid = x.indrelid AND a.attnum = k.number ORDER BY k.place)
FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid JOIN pg_class t ON t.oid = x.indrelid
WHERE t.relnamespace = $1::text::regnamespace
"""


#: Excludes generated columns, which only serve an index.
MYSQL_COLUMNS = """
SELECT table_name, column_name, data_type, is_nullable = 'YES', column_default IS NOT NULL OR extra <> ''
FROM information_schema.columns JOIN information_schema.tables USING (table_schema, table_name)
WHERE table_schema = DATABASE() AND table_type = 'BASE TABLE' AND COALESCE(generation_expression, '') = ''
"""

MYSQL_INDEXES = """
SELECT table_name, index_name, MAX(index_name = 'PRIMARY'), MAX(non_unique = 0),
  GROUP_CONCAT(column_name ORDER BY seq_in_index)
FROM information_schema.statistics WHERE table_schema = DATABASE() GROUP BY table_name, index_name
"""

Rows = Iterable[Sequence[Any]]


class Column(Struct, frozen=True):
    """A column: its type, and whether it may be NULL or left out."""

    kind: str
    nullable: bool
    #: True: an INSERT may leave it out.
    optional: bool


class Index(Struct, frozen=True):
    """An index of a table."""

    unique: bool
    columns: tuple[str, ...]


class Table(Struct, frozen=True):
    """A table. Index names are without the name and prefix of the table."""

    columns: dict[str, Column]
    key: tuple[str, ...]
    indexes: dict[str, Index]


Schema = dict[str, Table]


def of_sqlite(path: str) -> Schema:
    """Read the schema of an SQLite file."""
    with closing(sqlite3.connect(path)) as connection:
        names = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {name: _sqlite_table(connection, name) for name in names}


def _sqlite_table(connection: sqlite3.Connection, table: str) -> Table:
    rows = connection.execute(f"PRAGMA table_info({table})").fetchall()
    key = tuple(row[1] for row in sorted(rows, key=lambda row: row[5]) if row[5])
    columns = {}
    for _, name, kind, not_null, default, _ in rows:
        # SQLite numbers the rows of a table whose key is one INTEGER.
        numbered = key == (name,) and kind == "INTEGER" and not not_null
        columns[name] = Column(KINDS[kind.lower()], not (not_null or numbered), not not_null or default is not None)
    indexes = {}
    for _, name, unique, origin, _ in connection.execute(f"PRAGMA index_list({table})").fetchall():
        if origin == "c":
            found = connection.execute(f"PRAGMA index_info({name})").fetchall()
            indexes[name.removeprefix(f"{table}_")] = Index(bool(unique), tuple(row[2] for row in found))
    return Table(columns, key, indexes)


def of_rows(column_rows: Rows, index_rows: Rows) -> Schema:
    """Read the schema from the results of the queries above."""
    columns: dict[str, dict[str, Column]] = {}
    for table, name, kind, nullable, defaulted in column_rows:
        columns.setdefault(table, {})[name] = Column(KINDS[kind], bool(nullable), bool(nullable or defaulted))
    keys: dict[str, tuple[str, ...]] = {}
    indexes: dict[str, dict[str, Index]] = {}
    for table, name, primary, unique, found in index_rows:
        found = tuple(found.split(",") if isinstance(found, str) else found)
        if primary:
            keys[table] = found
        else:
            indexes.setdefault(table, {})[name.removeprefix(f"{table}_")] = Index(bool(unique), found)
    return {table: Table(columns[table], keys[table], indexes.get(table, {})) for table in columns}


def run_on_sqlite(path: str, script: str) -> None:
    """Run many statements on an SQLite file, as the sqlite3 shell does, which goes on after an error.

    SQLite cannot be told to add a column only if it does not exist; no other error is expected.
    """
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in script.split(";\n"):
            try:
                connection.executescript(statement)
            except sqlite3.OperationalError as error:
                if not str(error).startswith("duplicate column name"):
                    raise
