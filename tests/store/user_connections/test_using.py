"""`ctx.transaction` on connections of other libraries, and on connections that fail."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter
from collections.abc import Callable
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy

from perdure import Context, Retry, RunFailed, step, step_info, workflow
from tests.invariants import scan_store
from tests.stage import Stage
from tests.store.user_connections.libraries import (
    ALL,
    AsyncAlchemy,
    AsyncCustomer,
    AsyncPsycopg,
    Customer,
    Django,
    Psycopg,
    customer,
    plain,
)
from tests.store.user_connections.tables import prepare, written

#: Functions that return a connection, by the name of their table, which is the input of the workflow.
USING: dict[str, Callable[[], Any]] = {}
CALLS: Counter[str] = Counter()


def run_on(connection: Any, sql: str) -> None:
    if hasattr(connection, "cursor"):
        cursor = connection.cursor()
        cursor.execute(sql)
        cursor.close()
    else:
        connection.execute(sqlalchemy.text(sql))


async def run_waiting(connection: Any, sql: str) -> None:
    library = type(connection).__module__.partition(".")[0]
    if library == "asyncmy":
        await connection.query(sql)
    else:
        await connection.execute(sqlalchemy.text(sql) if library == "sqlalchemy" else sql)


@step(retry=Retry(attempts=2, initial=0.01))
def put(connection: Any, table: str, value: int) -> int:
    CALLS[table] += 1
    run_on(connection, f"INSERT INTO {table} VALUES ({value})")
    if step_info().attempt == 1 and value < 0:
        raise ValueError("not at the first attempt")
    return value


@step(retry=Retry(attempts=2, initial=0.01))
async def put_waiting(connection: Any, table: str, value: int) -> int:
    CALLS[table] += 1
    await run_waiting(connection, f"INSERT INTO {table} VALUES ({value})")
    if step_info().attempt == 1 and value < 0:
        raise ValueError("not at the first attempt")
    return value


@workflow("using.both.v1")
async def both(ctx: Context, table: str, *, waits: bool) -> list[int]:
    function = put_waiting if waits else put
    on = ctx.options(using=USING[table])
    return [await on.transaction(function, table, 1), await on.transaction(function, table, -1)]


@workflow("using.once.v1")
async def once(ctx: Context, table: str, *, waits: bool = False) -> int:
    on = ctx.options(using=USING[table], retry=Retry.never())
    return await on.transaction(put_waiting if waits else put, table, 1)


async def prepared(stage: Stage, columns: str = "value INTEGER") -> str:
    """Create a table that no function has written to yet."""
    name = await prepare(stage, columns)
    CALLS.pop(name, None)
    return name


async def test_every_library(place: tuple[Stage, Customer]) -> None:
    stage, someone = place
    engine = stage.engine(both)
    name = await prepared(stage)
    USING[name] = someone.connect
    async with engine.worker():
        run = await engine.start(both(name, waits=someone.waits))
        assert await run.result(timeout=30) == [1, -1]
    assert await written(stage) == [-1, 1]
    assert [record.attempts for record in await run.history() if record.kind == "step"] == [1, 2]
    assert stage.store is not None
    assert await scan_store(stage.store.query) == []


@step(retry=Retry.never())
def write_beside(connection: Any, table: str, path: str) -> str:
    other = sqlite3.connect(path, timeout=0)
    try:
        other.execute(f"INSERT INTO {table} VALUES (2)")
    except sqlite3.OperationalError as error:
        return str(error)
    finally:
        other.close()
    return "another connection could write"


@step(retry=Retry.never())
async def write_beside_waiting(connection: Any, table: str, path: str) -> str:
    return write_beside(connection, table, path)


@workflow("using.beside.v1")
async def beside(ctx: Context, table: str, path: str, *, waits: bool) -> str:
    function = write_beside_waiting if waits else write_beside
    return await ctx.options(using=USING[table]).transaction(function, table, path)


@pytest.mark.parametrize("library", [library for database, library in ALL if database == "sqlite"])
async def test_a_transaction_in_a_file_keeps_others_from_writing_before_its_function_looks(
    on_disk: Stage, library: str
) -> None:
    engine = on_disk.engine(beside)
    name = await prepared(on_disk)
    async with customer("sqlite", library, on_disk.url) as someone, engine.worker():
        USING[name] = someone.connect
        run = await engine.start(beside(name, str(on_disk.path), waits=someone.waits))
        assert await run.result(timeout=30) == "database is locked"


async def test_a_pool_gives_one_for_a_while(on_postgres: Stage) -> None:
    engine = on_postgres.engine(both)
    name = await prepared(on_postgres)
    # Without prepared statements, because there may be a pooler in between.
    opening = asyncpg.create_pool(plain(on_postgres.url), min_size=1, max_size=1, statement_cache_size=0)
    async with opening as pool, engine.worker():
        USING[name] = pool.acquire
        run = await engine.start(both(name, waits=True))
        assert await run.result(timeout=30) == [1, -1]
    assert await written(on_postgres) == [-1, 1]


@pytest.mark.parametrize("kind", [AsyncCustomer, Psycopg, AsyncPsycopg, AsyncAlchemy, Django])
async def test_a_connection_to_elsewhere_is_refused(on_disk: Stage, on_postgres: Stage, kind: type[Customer]) -> None:
    engine = on_disk.engine(once)
    name = await prepared(on_disk)
    someone = kind(on_postgres.url)
    USING[name] = someone.connect
    async with engine.worker():
        run = await engine.start(once(name, waits=someone.waits))
        with pytest.raises(RunFailed, match="to PostgreSQL; the engine's database is SQLite"):
            await run.result(timeout=30)


async def test_what_gives_a_connection_has_to_be_a_function(on_disk: Stage) -> None:
    engine = on_disk.engine(once)
    name = await prepared(on_disk)
    USING[name] = "sqlite://"  # type: ignore[assignment] # wrong on purpose
    async with engine.worker():
        run = await engine.start(once(name))
        with pytest.raises(RunFailed, match="a function that returns a connection"):
            await run.result(timeout=30)


class Forgetful(sqlite3.Connection):
    """A connection that loses the answer of its commit."""

    faults: list[str] = []

    def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        fault = self.faults.pop() if sql == "COMMIT" and self.faults else ""
        if fault == "before":
            raise ConnectionError("lost before the commit")
        cursor = super().execute(sql, *parameters)
        if fault == "after":
            raise ConnectionError("lost after the commit")
        return cursor


class ForgetfulServer(psycopg.Connection[Any]):
    """A connection to a server that loses the answer of its commit."""

    faults: list[str] = []

    def commit(self) -> None:
        fault = self.faults.pop() if self.faults else ""
        if fault == "before":
            raise ConnectionError("lost before the commit")
        super().commit()
        if fault == "after":
            self.close()
            raise ConnectionError("lost after the commit")


@pytest.mark.parametrize(("fault", "calls"), [("before", 2), ("after", 1)])
async def test_a_commit_whose_answer_is_lost_is_looked_for(
    on_disk: Stage, on_postgres: Stage, fault: str, calls: int
) -> None:
    for stage in (on_disk, on_postgres):
        engine = stage.engine(once)
        name = await prepared(stage)
        if stage.path is not None:
            Forgetful.faults = [fault]
            USING[name] = lambda: sqlite3.connect(on_disk.path or "", factory=Forgetful)
        else:
            ForgetfulServer.faults = [fault]
            USING[name] = lambda: ForgetfulServer.connect(plain(on_postgres.url))
        async with engine.worker():
            run = await engine.start(once(name))
            assert await run.result(timeout=30) == 1
        assert CALLS[name] == calls
        assert await written(stage) == [1]
        assert [(record.location, record.attempts) for record in await run.history()] == [("put", 1)]


async def test_what_the_commit_itself_refuses_is_an_error_of_the_function(on_postgres: Stage) -> None:
    engine = on_postgres.engine(twice)
    name = await prepared(on_postgres, "value INTEGER UNIQUE DEFERRABLE INITIALLY DEFERRED")
    async with engine.worker():
        run = await engine.start(twice(name))
        with pytest.raises(RunFailed, match="UniqueViolation"):
            await run.result(timeout=30)
    assert await written(on_postgres) == []
    assert [(record.location, record.failed) for record in await run.history()] == [("put_twice", True)]


@step(retry=Retry.never())
async def put_twice(connection: Any, table: str) -> None:
    for _ in range(2):
        await connection.execute(f"INSERT INTO {table} VALUES (1)")


@workflow("using.twice.v1")
async def twice(ctx: Context, table: str) -> None:
    await ctx.transaction(put_twice, table)


@step(retry=Retry.never())
async def put_and_be_cut_off(connection: Any, table: str, dsn: str, times: int) -> int:
    await connection.execute(f"INSERT INTO {table} VALUES (1)")
    CALLS[table] += 1
    if CALLS[table] <= times:
        # The process id that the driver knows may be that of a pooler.
        session = await connection.fetchval("SELECT pg_backend_pid()")
        other = await asyncpg.connect(dsn, statement_cache_size=0)
        await other.execute("SELECT pg_terminate_backend($1, 5000)", session)
        await other.close()
    return CALLS[table]


@workflow("using.cut_off.v1")
async def cut_off(ctx: Context, table: str, dsn: str, times: int) -> int:
    return await ctx.transaction(put_and_be_cut_off, table, dsn, times)


async def test_a_connection_that_is_cut_off_is_no_failure_of_the_function(on_postgres: Stage) -> None:
    engine = on_postgres.engine(cut_off)
    name = await prepared(on_postgres)
    async with engine.worker():
        run = await engine.start(cut_off(name, plain(on_postgres.url), 2))
        assert await run.result(timeout=30) == 3
    assert await written(on_postgres) == [1]
    assert [record.attempts for record in await run.history()] == [1]


async def test_a_connection_that_is_always_cut_off_is_one_in_the_end(on_postgres: Stage) -> None:
    engine = on_postgres.engine(cut_off)
    name = await prepared(on_postgres)
    async with engine.worker():
        run = await engine.start(cut_off(name, plain(on_postgres.url), 1000))
        with pytest.raises(RunFailed):
            await run.result(timeout=30)
    assert await written(on_postgres) == []
    assert CALLS[name] == 5


async def test_transactions_that_keep_all_connections_do_not_stop_the_worker(on_postgres: Stage) -> None:
    """Each transaction waits for a step that is recorded while all of them wait."""
    on_postgres.url += "&pool=2"
    engine = on_postgres.engine(crowded)
    name = await prepared(on_postgres)
    GATES[name] = asyncio.Event()
    async with engine.worker():
        run = await engine.start(crowded(name))
        assert await run.result(timeout=30) == list(range(6))
    assert await written(on_postgres) == list(range(6))


GATES: dict[str, asyncio.Event] = {}


async def put_when_open(connection: Any, table: str, value: int) -> int:
    await connection.execute(f"INSERT INTO {table} VALUES ({value})")
    await GATES[table].wait()
    return value


async def nothing() -> None:
    return None


async def open_gate(table: str) -> None:
    GATES[table].set()


@workflow("using.crowded.v1")
async def crowded(ctx: Context, table: str) -> list[int]:
    async def others() -> None:
        await ctx.step(nothing)
        await ctx.step(open_gate, table)

    transactions = [ctx.transaction(put_when_open, table, value) for value in range(6)]
    return (await asyncio.gather(others(), *transactions))[1:]
