"""A table of the user in the engine's database, and writes to it through each engine's driver."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any

import asyncpg

from tests.servers.databases import execute as execute_on_mysql
from tests.stage import Stage
from tests.store.user_connections.libraries import plain


def table(stage: Stage) -> str:
    """Return the name of the table; on a server it has the schema or prefix of the test."""
    return table_at(stage.url)


def table_at(url: str) -> str:
    """Return the name of the table for a URL."""
    schema = url.partition("schema=")[2].partition("&")[0]
    return f"{schema}.mine" if schema else "mine"


async def prepare(stage: Stage, columns: str = "value INTEGER") -> str:
    """Create the table and open the database; return the name of the table."""
    if not stage.engines:
        await stage.engine().open()
    for engine in stage.engines:
        await engine.open()
    name = table(stage)
    statements = [f"DROP TABLE IF EXISTS {name}", f"CREATE TABLE {name} ({columns})"]
    if stage.path is not None:
        with closing(sqlite3.connect(stage.path)) as connection:
            for statement in statements:
                connection.execute(statement)
    elif stage.url.startswith("mysql"):
        await execute_on_mysql(stage.url, statements)
    elif stage.url.startswith("postgres"):
        server = await asyncpg.connect(plain(stage.url))
        await server.execute(";".join(statements))
        await server.close()
    else:
        await stage.rows(statements[1])
    return name


async def written(stage: Stage) -> list[int]:
    """Return the rows of the table."""
    return sorted(row[0] for row in await stage.rows(f"SELECT value FROM {table(stage)}"))


async def execute(connection: Any, sql: str) -> None:
    """Execute a statement on a connection of any engine's driver; only those of servers are asynchronous."""
    if isinstance(connection, sqlite3.Connection):
        connection.execute(sql)
    elif isinstance(connection, asyncpg.Connection):
        await connection.execute(sql)
    else:
        async with connection.cursor() as cursor:
            await cursor.execute(sql)


async def put(connection: Any, table: str, value: int) -> int:
    """Insert a row."""
    await execute(connection, f"INSERT INTO {table} VALUES ({value})")
    return value
