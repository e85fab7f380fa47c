"""A table of the user's in the engine's database, and how each engine's own driver writes to it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any

import asyncpg

from tests.servers.databases import execute as execute_on_mysql
from tests.stage import Stage
from tests.store.user_connections.libraries import plain


def table(stage: Stage) -> str:
    """Its name; on a server, it is in the place of the test."""
    return table_at(stage.url)


def table_at(url: str) -> str:
    """Its name in the place of that URL."""
    schema = url.partition("schema=")[2].partition("&")[0]
    return f"{schema}.mine" if schema else "mine"


async def prepare(stage: Stage, columns: str = "value INTEGER") -> str:
    """Make it, and open the database; its name."""
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
    """What it holds."""
    return sorted(row[0] for row in await stage.rows(f"SELECT value FROM {table(stage)}"))


async def execute(connection: Any, sql: str) -> None:
    """On a connection of any engine's own driver; only those of servers have something to wait for."""
    if isinstance(connection, sqlite3.Connection):
        connection.execute(sql)
    elif isinstance(connection, asyncpg.Connection):
        await connection.execute(sql)
    else:
        async with connection.cursor() as cursor:
            await cursor.execute(sql)


async def put(connection: Any, table: str, value: int) -> int:
    """Add a row."""
    await execute(connection, f"INSERT INTO {table} VALUES ({value})")
    return value
