"""Unsuitable connections are refused before anything is written."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pymysql.cursors
import pytest
import sqlalchemy

from perdure import Context, Engine, Retry, RunFailed, UsageError, workflow
from perdure.errors import EngineClosed, SchemaMismatch
from perdure.store.user_connections.adapter import find_adapter
from tests.servers.schemas import postgres_dsn
from tests.stage import Stage
from tests.store.user_connections.libraries import Alchemy, Customer, plain
from tests.store.user_connections.test_starting import Place, echo, runs


def test_a_cursor_is_no_connection() -> None:
    assert find_adapter(pymysql.cursors.Cursor(None)) is None


async def test_a_connection_that_commits_by_itself_is_refused(place: Place) -> None:
    stage, someone = place
    engine = stage.engine(echo)
    await engine.open()
    await someone.reset(someone.connect_committing)
    with pytest.raises(UsageError, match="transaction"):
        await someone.call(engine, "start", echo("x"))
    with pytest.raises(UsageError, match="transaction"):
        await someone.call(engine, "send", "a", "word")
    assert await runs(stage) == []


@pytest.mark.parametrize("library", ["sqlite3", "alchemy"])
async def test_a_closed_connection_to_a_file_is_refused(on_disk: Stage, library: str) -> None:
    engine = on_disk.engine(echo)
    await engine.open()
    closed = await _closed(Customer if library == "sqlite3" else Alchemy, on_disk.url)
    with pytest.raises(UsageError, match="closed"):
        await engine.start(echo("x"), connection=closed)


@pytest.mark.parametrize("library", ["asyncpg", "psycopg", "pymysql", "asyncmy", "sqlalchemy", "django"])
def test_an_object_of_a_known_library_that_is_no_connection_is_not_taken_for_one(library: str) -> None:
    thing = type("Thing", (), {"__module__": f"{library}.things"})()
    assert find_adapter(thing) is None


async def _closed(kind: type[Customer], url: str) -> Any:
    someone = kind(url)
    connection = someone.connect()
    connection.close()
    return connection


async def test_a_closed_connection_to_a_server_is_refused(on_postgres: Stage) -> None:
    engine = on_postgres.engine(echo)
    await engine.open()
    one = await asyncpg.connect(plain(on_postgres.url))
    await one.close()
    other = await psycopg.AsyncConnection.connect(plain(on_postgres.url))
    await other.close()
    for closed in (one, other, await _closed(Alchemy, on_postgres.url)):
        with pytest.raises(UsageError, match="closed"):
            await engine.start(echo("x"), connection=closed)


async def test_a_transaction_that_has_failed_is_refused(on_postgres: Stage) -> None:
    engine = on_postgres.engine(echo)
    await engine.open()
    async with await psycopg.AsyncConnection.connect(plain(on_postgres.url)) as connection:
        with pytest.raises(psycopg.errors.DivisionByZero):
            await connection.execute("SELECT 1 / 0")
        with pytest.raises(UsageError, match="rolled back"):
            await engine.start(echo("x"), connection=connection)


async def test_another_file_is_refused(on_disk: Stage, tmp_path: Path) -> None:
    engine = on_disk.engine(echo)
    await engine.open()
    async with Engine(f"sqlite:///{tmp_path}/other.db", [echo]) as other:
        await other.open()
    with closing(sqlite3.connect(tmp_path / "other.db")) as connection:
        with pytest.raises(UsageError, match=r"other\.db"):
            await engine.start(echo("x"), connection=connection)
        connection.rollback()
        assert connection.execute("SELECT COUNT(*) FROM perdure_runs").fetchone() == (0,)
    with closing(sqlite3.connect(":memory:")) as connection, pytest.raises(UsageError, match="in memory"):
        await engine.start(echo("x"), connection=connection)


async def test_a_file_by_another_name_is_the_same(on_disk: Stage, tmp_path: Path) -> None:
    engine = on_disk.engine(echo)
    await engine.open()
    (tmp_path / "link").symlink_to(tmp_path)
    with closing(sqlite3.connect(tmp_path / "link" / "runs.db")) as connection:
        await engine.start(echo("x"), id="a", connection=connection)
        connection.commit()
    assert await runs(on_disk) == ["a"]


async def test_a_database_in_memory_cannot_be_reached(tmp_path: Path) -> None:
    async with Engine("sqlite://", [echo]) as engine:
        with closing(sqlite3.connect(":memory:")) as connection, pytest.raises(UsageError, match="use a file"):
            await engine.start(echo("x"), connection=connection)


async def test_a_server_without_the_tables_is_refused_and_its_transaction_goes_on() -> None:
    engine = Engine(f"{postgres_dsn()}?schema=nowhere", [echo])
    connection = await asyncpg.connect(postgres_dsn())
    try:
        async with connection.transaction():
            with pytest.raises(SchemaMismatch, match="perdure migrate"):
                await engine.start(echo("x"), connection=connection)
            assert await connection.fetchval("SELECT 1") == 1
    finally:
        await connection.close()
        await engine.close()


async def test_another_kind_of_database_is_refused(on_disk: Stage) -> None:
    engine = on_disk.engine(echo)
    connection = await asyncpg.connect(postgres_dsn())
    try:
        with pytest.raises(UsageError, match=r"to PostgreSQL.*is SQLite"):
            await engine.start(echo("x"), connection=connection)
    finally:
        await connection.close()


async def test_a_step_in_another_kind_of_database_is_refused(on_disk: Stage) -> None:
    def elsewhere() -> Any:
        connection = pymysql.Connection(defer_connect=True)
        connection.server_status = 0
        return connection

    async def act(connection: Any) -> None:
        raise AssertionError("it was called")

    @workflow("refusing.elsewhere.v1")
    async def flow(ctx: Context) -> None:
        await ctx.options(using=elsewhere, retry=Retry.never()).transaction(act)

    engine = on_disk.engine(flow)
    async with engine.worker():
        with pytest.raises(RunFailed, match=r"leads to MySQL.*is SQLite"):
            await (await engine.start(flow())).result("20s")


@pytest.mark.parametrize("thing", [object(), "sqlite:///x.db", sqlalchemy.create_engine("sqlite://")])
async def test_what_is_no_connection_is_refused(on_disk: Stage, thing: object) -> None:
    engine = on_disk.engine(echo)
    with pytest.raises(UsageError, match="no connection that Perdure can write on"):
        await engine.start(echo("x"), connection=thing)
    with pytest.raises(UsageError, match="no connection that Perdure can write on"):
        engine.blocking().send("a", "word", connection=thing)


async def test_an_async_connection_is_not_for_a_blocking_engine(on_postgres: Stage) -> None:
    engine = on_postgres.engine(echo)
    connection = await asyncpg.connect(plain(on_postgres.url))
    try:
        with pytest.raises(UsageError, match="await engine.start"):
            await asyncio.to_thread(engine.blocking().start, echo("x"), connection=connection)
    finally:
        await connection.close()


async def test_a_closed_engine_writes_on_nothing(on_disk: Stage) -> None:
    engine = on_disk.engine(echo)
    await engine.open()
    await engine.close()
    with closing(sqlite3.connect(str(on_disk.path))) as connection, pytest.raises(EngineClosed):
        await engine.start(echo("x"), connection=connection)


async def test_an_engine_need_not_be_open(on_disk: Stage) -> None:
    await on_disk.engine(echo).open()
    engine = Engine(on_disk.url, [echo])
    with closing(sqlite3.connect(str(on_disk.path))) as connection:
        await engine.start(echo("x"), id="a", connection=connection)
        connection.commit()
    assert await runs(on_disk) == ["a"]
    await engine.close()


async def test_tables_of_another_name_are_found(tmp_path: Path) -> None:
    stage = Stage(None, f"sqlite:///{tmp_path}/runs.db?prefix=other_")
    await stage.engine(echo).open()
    engine = Engine(stage.url, [echo])
    with closing(sqlite3.connect(tmp_path / "runs.db")) as connection:
        await engine.start(echo("x"), id="a", connection=connection)
        connection.commit()
        assert connection.execute("SELECT id FROM other_runs").fetchall() == [("a",)]
    await engine.close()
    await stage.close()
