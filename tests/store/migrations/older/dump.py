"""Rows of all tables of a database, as JSON, and back into a database with the same tables."""

from __future__ import annotations

import gzip
import json
import re
import socket
import sqlite3
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

#: By table: names of columns, and rows.
Dump = dict[str, dict[str, list[Any]]]

_TABLES = {
    "sqlite": "SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'perdure%'",
    "postgres": """SELECT table_name FROM information_schema.tables
        WHERE table_schema = current_schema() AND table_type = 'BASE TABLE'""",
    "mysql": """SELECT table_name FROM information_schema.tables
        WHERE table_schema = DATABASE() AND table_type = 'BASE TABLE'""",
}
#: Generated columns, which cannot be inserted.
_GENERATED = """SELECT column_name FROM information_schema.columns
    WHERE table_schema = DATABASE() AND COALESCE(generation_expression, '') <> ''"""
#: Folders in the tracebacks of errors.
_FOLDER = re.compile(r"/[\w./-]+/(src|tests)/")
#: A restored table numbers on from its last row, as after `pg_dump`.
_NUMBER_ON = """SELECT setval(pg_get_serial_sequence('perdure_events', 'id'),
    (SELECT COALESCE(MAX(id), 0) + 1 FROM perdure_events), false)"""


def kind_of(url: str) -> str:
    """The database that a URL names."""
    return urlsplit(url).scheme.replace("postgresql", "postgres")


def connect(url: str) -> Any:
    """A connection of the usual library."""
    where = urlsplit(url)
    if kind_of(url) == "sqlite":
        return sqlite3.connect(where.path)
    if kind_of(url) == "postgres":
        import psycopg

        schema = parse_qs(where.query)["schema"][0]
        return psycopg.connect(where._replace(query="").geturl(), options=f"-c search_path={schema}")
    import pymysql

    return pymysql.connect(
        host=where.hostname,
        port=where.port or 3306,
        user=where.username,
        password=where.password or "",
        database=where.path[1:],
        charset="utf8mb4",
        ssl_disabled=True,
    )


def save(url: str, path: Path) -> None:
    """Write all rows of a database into a file."""
    connection = connect(url)
    cursor = connection.cursor()
    cursor.execute(_TABLES[kind_of(url)])
    tables = sorted(name for (name,) in cursor.fetchall())
    generated: set[str] = set()
    if kind_of(url) == "mysql":
        cursor.execute(_GENERATED)
        generated = {name for (name,) in cursor.fetchall()}
    dump: Dump = {}
    for table in tables:
        cursor.execute(f"SELECT * FROM {table}")
        columns = [one[0] for one in cursor.description]
        places = [place for place, name in enumerate(columns) if name not in generated]
        rows = [[_plain(row[place]) for place in places] for row in cursor.fetchall()]
        dump[table] = {"columns": [columns[place] for place in places], "rows": sorted(rows, key=repr)}
    connection.close()
    path.write_bytes(gzip.compress(json.dumps(dump, indent=0).encode(), mtime=0))


def _plain(value: Any) -> Any:
    """Return a value as JSON has it, without the names of the machine that wrote it."""
    text = value.decode() if isinstance(value, bytes) else value
    if text == socket.gethostname():
        return "older-host"
    return _FOLDER.sub(r"\1/", text) if isinstance(text, str) else text


def read(path: Path) -> Dump:
    """Read a file that `save` wrote."""
    found: Dump = json.loads(gzip.decompress(path.read_bytes()))
    return found


def load(url: str, dump: Dump) -> None:
    """Put rows into the tables of a database, in place of the rows that are there."""
    connection = connect(url)
    cursor = connection.cursor()
    mark = "?" if kind_of(url) == "sqlite" else "%s"
    for table, content in dump.items():
        columns = content["columns"]
        cursor.execute(f"DELETE FROM {table}")
        cursor.executemany(
            f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join([mark] * len(columns))})", content["rows"]
        )
    if kind_of(url) == "postgres":
        cursor.execute(_NUMBER_ON)
    connection.commit()
    connection.close()


def by_name(dump: Dump, table: str) -> list[dict[str, Any]]:
    """Rows of a table, by the names of its columns."""
    content = dump[table]
    return [dict(zip(content["columns"], row, strict=True)) for row in content["rows"]]
