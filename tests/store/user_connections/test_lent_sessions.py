"""Nothing that one transaction step leaves on its session reaches another one."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from perdure import Context, Retry, RunFailed, step, workflow
from tests.helpers import eventually
from tests.servers.databases import Databases
from tests.servers.schemas import PGBOUNCER, Schemas
from tests.stage import Stage
from tests.store.user_connections.conftest import a_stage

#: Ways to leave something behind, and a query that shows it.
POSTGRES = {
    "search path": ("SET search_path TO pg_catalog", "SHOW search_path"),
    "time limit": ("SET statement_timeout TO 12345", "SHOW statement_timeout"),
    "isolation": ("SET default_transaction_isolation TO 'serializable'", "SHOW transaction_isolation"),
    "read only": (
        "SET default_transaction_read_only TO on",
        "SELECT current_setting('default_transaction_read_only')",
    ),
    "setting": (
        "SELECT set_config('app.tenant', 'alice', false)",
        "SELECT coalesce(current_setting('app.tenant', true), '')",
    ),
    "role": ("SET ROLE pg_monitor", "SELECT current_user::text"),
    "user": ("SET SESSION AUTHORIZATION pg_monitor", "SELECT session_user::text"),
    "temporary table": ("CREATE TEMP TABLE left_behind (a int)", "SELECT to_regclass('pg_temp.left_behind')::text"),
    "advisory lock": (
        "SELECT pg_advisory_lock(4711)",
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()",
    ),
    "prepared statement": ("PREPARE left_behind AS SELECT 1", "SELECT count(*) FROM pg_prepared_statements"),
    "cursor": ("DECLARE left_behind CURSOR WITH HOLD FOR SELECT 1", "SELECT count(*) FROM pg_cursors"),
    "channel": ("LISTEN left_behind", "SELECT count(*) FROM pg_listening_channels()"),
    "sequence": (
        "CREATE TEMP SEQUENCE s; SELECT nextval('s'); SELECT setseed(0.5)",
        "SELECT to_regclass('pg_temp.s')::text",
    ),
}
MYSQL = {
    "sql_mode": ("SET SESSION sql_mode = 'NO_BACKSLASH_ESCAPES'", "SELECT @@sql_mode"),
    "variable": ("SET @tenant = 'alice'", "SELECT @tenant"),
    "isolation": ("SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE", "SHOW VARIABLES LIKE 't%x_isolation'"),
    "commits": ("SET autocommit = 0", "SELECT @@autocommit"),
    "time zone": ("SET time_zone = '+05:00'", "SELECT @@time_zone"),
    "character set": ("SET NAMES latin1", "SELECT CONCAT(@@character_set_client, @@collation_connection)"),
    "checks": ("SET foreign_key_checks = 0", "SELECT @@foreign_key_checks"),
    "lock": ("DO GET_LOCK('left behind', 0)", "SELECT IS_USED_LOCK('left behind') IS NULL"),
    "prepared statement": ("PREPARE left_behind FROM 'SELECT 1'", "SHOW SESSION STATUS LIKE 'Prepared_stmt_count'"),
    "last id": ("DO LAST_INSERT_ID(4711)", "SELECT LAST_INSERT_ID()"),
    "role": ("SET ROLE left_behind", "SELECT CURRENT_ROLE()"),
    "database": ("USE mysql", "SELECT DATABASE()"),
    "time": ("SET timestamp = 1000", "SELECT NOW() < '2000-01-01'"),
    "timeouts": ("SET SESSION innodb_lock_wait_timeout = 7", "SELECT @@innodb_lock_wait_timeout"),
}
SQLITE = {
    "temporary table": ("CREATE TEMP TABLE left_behind (a int)", "SELECT count(*) FROM temp.sqlite_master"),
    "temporary view": ("CREATE TEMP VIEW left_behind AS SELECT 1", "SELECT count(*) FROM temp.sqlite_master"),
    "foreign keys": ("PRAGMA defer_foreign_keys = 1", "PRAGMA defer_foreign_keys"),
    "recursive triggers": ("PRAGMA recursive_triggers = 1", "PRAGMA recursive_triggers"),
    "checks": ("PRAGMA ignore_check_constraints = 1", "PRAGMA ignore_check_constraints"),
    "order": ("PRAGMA reverse_unordered_selects = 1", "PRAGMA reverse_unordered_selects"),
    "writes": ("PRAGMA query_only = 1", "PRAGMA query_only"),
    "trust": ("PRAGMA trusted_schema = 1", "PRAGMA trusted_schema"),
    "busy": ("PRAGMA busy_timeout = 123", "PRAGMA busy_timeout"),
    "synchronous": ("PRAGMA cache_size = 123", "PRAGMA cache_size"),
}
#: Without their rights, tables or file, not even the record can be written.
DISABLING = ("role", "user", "database", "writes")
CASES = [
    (database, kind, raises)
    for database, kinds in (("postgres", POSTGRES), ("mysql", MYSQL), ("memory", SQLITE), ("sqlite", SQLITE))
    for kind in kinds
    for raises in (False, True)
    if raises or kind not in DISABLING
]


async def ask(connection: Any, sql: str) -> str:
    """Run a query on the connection of any of the drivers."""
    if isinstance(connection, sqlite3.Connection):
        return str(connection.execute(sql).fetchall())
    if hasattr(connection, "fetch"):
        return str([tuple(row) for row in await connection.fetch(sql)])
    async with connection.cursor() as cursor:
        await cursor.execute(sql)
        return str(await cursor.fetchall())


@step(retry=Retry.never())
async def leave(connection: Any, sql: str, *, raises: bool) -> str:
    if hasattr(connection, "fetch"):
        await connection.execute(sql)
    else:
        await ask(connection, sql)
    if raises:
        raise ValueError("after all")
    return "it's \\ left"


async def look(connection: Any, sql: str) -> str:
    return await ask(connection, sql)


@workflow("lent.leaves.v1")
async def leaves(ctx: Context, sql: str, raises: bool) -> str:
    return await ctx.transaction(leave, sql, raises=raises)


@workflow("lent.looks.v1")
async def looks(ctx: Context, sql: str) -> str:
    return await ctx.transaction(look, sql)


@pytest.mark.parametrize(("database", "kind", "raises"), CASES)
async def test_no_other_run_sees_what_a_step_has_left(
    database: str, kind: str, *, raises: bool, tmp_path: Path, schemas: Schemas, databases: Databases
) -> None:
    if kind == "prepared statement" and database == "postgres" and PGBOUNCER in os.environ:
        pytest.skip("a pooler has statements of its own on the session")
    left, shows = {"postgres": POSTGRES, "mysql": MYSQL}.get(database, SQLITE)[kind]
    async with a_stage(database, tmp_path, schemas, databases) as stage:
        engine = stage.engine(leaves, looks)
        async with engine.worker():
            if "ROLE left_behind" in left:
                assert stage.store is not None
                await stage.store.query("CREATE ROLE IF NOT EXISTS left_behind")
            before = await (await engine.start(looks(shows))).result(timeout=60)
            run = await engine.start(leaves(left, raises))
            if raises:
                with pytest.raises(RunFailed, match="after all"):
                    await run.result(timeout=60)
            else:
                assert await run.result(timeout=60) == "it's \\ left"
            after = await (await engine.start(looks(shows))).result(timeout=60)
    assert after == before


@step(retry=Retry.never())
async def alter_the_driver(connection: Any) -> None:
    if hasattr(connection, "set_type_codec"):
        await connection.set_type_codec("int4", schema="pg_catalog", encoder=str, decoder=lambda text: f"<{text}>")
    else:
        connection._charset, connection._encoding = "latin1", "cp1252"


@step(retry=Retry.never())
async def read_a_number(connection: Any) -> str:
    return await ask(connection, "SELECT 7, 'ä'" if hasattr(connection, "cursor") else "SELECT 7::int4, 'ä'")


@workflow("lent.alters.v1")
async def alters(ctx: Context) -> list[str]:
    before = await ctx.transaction(read_a_number)
    await ctx.transaction(alter_the_driver)
    return [before, await ctx.transaction(read_a_number)]


async def test_settings_of_the_driver_end_with_the_step_too(on_server: Stage) -> None:
    engine = on_server.engine(alters)
    async with engine.worker():
        before, after = await (await engine.start(alters())).result(timeout=60)
    assert before == after


@step(retry=Retry.never())
async def read_session(connection: Any) -> str:
    return await ask(connection, "SELECT CONNECTION_ID()" if hasattr(connection, "ping") else "SELECT pg_backend_pid()")


@workflow("lent.same.v1")
async def same(ctx: Context) -> str:
    return await ctx.transaction(read_session)


async def test_a_session_that_was_left_clean_is_used_again(on_server: Stage) -> None:
    engine = on_server.engine(same)
    sessions: set[str] = set()
    async with engine.worker():
        store: Any = on_server.store
        lent = store._lent.here()
        for _ in range(5):
            sessions.add(await (await engine.start(same())).result(timeout=60))
            await eventually(lambda: not lent._cleaning, saying="the session being reset")
    assert len(sessions) <= 2
