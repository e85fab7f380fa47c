"""Rows by the hundred thousand, put into the tables directly: what a store looks like after months of use."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import islice

from perdure.core.time.duration import NEVER
from perdure.store.url import MysqlUrl, PostgresUrl, SqliteUrl

COLUMNS = "id, type, input, status, reason, wake_at, created_at, started_at, finished_at, token, nonce, seed, output"

#: When the rows begin to be created, in microseconds; one per millisecond follows.
BEGINNING = 1_700_000_000_000_000
DAY = 86_400_000_000

Row = tuple[object, ...]


def finished(count: int, type: str) -> Iterator[Row]:
    """Runs with their outcome."""
    for number in range(count):
        at = BEGINNING + number * 1000
        yield _id("f", number), type, '{"count":1}', "completed", None, at, at, at, at + 900, 1, "n", "s", "4200"


def sleeping(count: int, type: str) -> Iterator[Row]:
    """Runs that wait for a timer, from a day ahead on."""
    tomorrow = time.time_ns() // 1000 + DAY
    for number in range(count):
        at = BEGINNING + number * 1000
        yield (
            _id("s", number),
            type,
            '{"seconds":5.0}',
            "waiting",
            "timer",
            tomorrow + number,
            at,
            at,
            0,
            1,
            "n",
            "s",
            None,
        )


def ready(count: int, type: str) -> Iterator[Row]:
    """Runs that are ready for the worker that serves their type."""
    for number in range(count):
        at = BEGINNING + number * 1000
        yield _id("r", number), type, "{}", "pending", None, at, at, 0, 0, 0, "", "", None


def parked(count: int, type: str) -> Iterator[Row]:
    """Runs that wait for a message, with no end in sight."""
    for number in range(count):
        at = BEGINNING + number * 1000
        yield _id("p", number), type, '{"number":1}', "waiting", "message", NEVER, at, at, 0, 1, "n", "s", None


async def fill(where: SqliteUrl | PostgresUrl | MysqlUrl, *rows: Iterator[Row]) -> None:
    """Insert the rows into a database whose tables exist; not durably, which is not the point here."""
    if isinstance(where, PostgresUrl):
        await _fill_postgres(where, *rows)
        return
    if isinstance(where, MysqlUrl):
        await _fill_mysql(where, *rows)
        return
    if where.path is None:
        raise SystemExit("this workload fills the database from outside, so it needs one in a file")
    with closing(sqlite3.connect(where.path, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("BEGIN IMMEDIATE")
        marks = ", ".join("?" * len(COLUMNS.split(", ")))
        for kind in rows:
            connection.executemany(f"INSERT INTO {where.prefix}runs ({COLUMNS}) VALUES ({marks})", kind)
        connection.execute("COMMIT")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


async def _fill_postgres(where: PostgresUrl, *rows: Iterator[Row]) -> None:
    import asyncpg

    connection = await asyncpg.connect(where.dsn)
    for kind in rows:
        await connection.copy_records_to_table(
            f"{where.prefix}runs", schema_name=where.schema, columns=COLUMNS.split(", "), records=kind, timeout=600
        )
    # What autovacuum does within a minute, and what a store that was filled over months has long had.
    await connection.execute(f"VACUUM ANALYZE {where.tables}runs", timeout=600)
    await connection.close()


async def _fill_mysql(where: MysqlUrl, *rows: Iterator[Row]) -> None:
    from perdure.store.mysql.driver import MysqlConnector
    from perdure.store.mysql.transaction import sql_rows

    connection = await MysqlConnector(where).connect()
    for kind in rows:
        await connection.send(["BEGIN"])
        while some := list(islice(kind, 5000)):
            await connection.send([f"INSERT INTO {where.prefix}runs ({COLUMNS}) VALUES {sql_rows(some)}"])
        await connection.send(["COMMIT"])
    await connection.send([f"ANALYZE TABLE {where.prefix}runs"])
    await connection.close_gracefully()


def _id(kind: str, number: int) -> str:
    return f"{kind}{number:012d}-7000-8000-000000000000"
