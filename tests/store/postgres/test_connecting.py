"""Connections and privileges: schemas, prefixes, roles, event loops, poolers, servers that are down."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from perdure import Context, Engine, workflow
from perdure.errors import SchemaMismatch, StoreDenied, StoreUnavailable
from perdure.host import Host
from perdure.store import migration_status, open_store
from perdure.store.migrations import known
from perdure.store.postgres.driver import PostgresConnection, connect
from perdure.store.postgres.store import PostgresStore
from perdure.store.server.clock import ServerClock
from perdure.store.sql.dialect import POSTGRES
from perdure.testing.conformance.harness import (
    ACTOR,
    ManualSystem,
    a_record,
    a_run,
    a_worker,
    claim_ids,
    commit,
    held,
)
from tests.helpers import eventually
from tests.servers.places import TABLES
from tests.servers.schemas import Schemas, postgres_dsn

asyncpg = pytest.importorskip("asyncpg")

VERSIONS = [(one.version,) for one in known(POSTGRES)]


@pytest.fixture
async def fresh(schemas: Schemas) -> AsyncIterator[str]:
    async with schemas.one(fresh=True) as url:
        yield url


async def opened(url: str, *, migrate: bool = True) -> PostgresStore:
    store = open_store(url, Host(), migrate=migrate)
    assert isinstance(store, PostgresStore)
    await store.open()
    return store


@workflow("connecting.greeting.v1")
async def greeting(ctx: Context, name: str) -> str:
    return await ctx.step(greet, name) + await ctx.receive("more", str)


def greet(name: str) -> str:
    return f"hello {name}"


async def greet_through(url: str) -> None:
    """Start, claim, record, send, park, wake up and finish a run."""
    async with Engine(url, [greeting]) as engine, engine.worker():
        run = await engine.start(greeting("you"))
        await run.send("more", "!")
        assert await run.result("30s") == "hello you!"


@asynccontextmanager
async def a_role(setup: str, url: str) -> AsyncIterator[tuple[str, Any, str, str]]:
    """Create a role; yield a URL with it, an administrator's connection, the schema and the role's name."""
    schema, role = url.rpartition("schema=")[2], f"clerk_{uuid.uuid4().hex}"
    admin = await asyncpg.connect(postgres_dsn())
    await admin.execute(f"CREATE ROLE {role} LOGIN; {setup.format(schema=schema, role=role)}")
    try:
        yield url.replace("postgres@", f"{role}@"), admin, schema, role
    finally:
        await admin.execute(f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}")
        await admin.close()


async def test_two_prefixes_share_a_schema_and_see_nothing_of_each_other(fresh: str) -> None:
    stores = [await opened(f"{fresh}&prefix={prefix}") for prefix in ("a_", "b_")]
    await stores[0].create([a_run("r1")], ACTOR)
    assert [await store.get("r1") is not None for store in stores] == [True, False]
    for store in stores:
        await held(store, "r2", f"w-{id(store)}")
        await store.close()


async def test_many_that_start_at_once_migrate_once(fresh: str) -> None:
    stores = await asyncio.gather(*(opened(fresh) for _ in range(6)))
    assert await stores[0].query("SELECT version FROM perdure_migrations ORDER BY version") == VERSIONS
    for store in stores:
        await store.close()
    assert all(one.applied_at > 0 for one in await migration_status(fresh, Host()))


async def test_a_migration_waits_for_another_one_for_as_long_as_that_takes(fresh: str) -> None:
    store = await opened(fresh)
    await store.query("DELETE FROM perdure_migrations")
    admin = await asyncpg.connect(postgres_dsn())
    transaction = admin.transaction()
    await transaction.start()
    await admin.execute("SELECT pg_advisory_xact_lock(1885697124, hashtext($1))", store._tables)
    second = asyncio.create_task(opened(fresh))

    async def waits() -> bool:
        # Longer than any other statement waits for a lock.
        age = "clock_timestamp() - query_start > interval '2.3 s'"
        # For this lock: other tests use the same server.
        waiting = f"{admin.get_server_pid()} = ANY (pg_blocking_pids(pid))"
        return bool(await store.query(f"SELECT 1 FROM pg_stat_activity WHERE {waiting} AND {age}"))

    await eventually(waits, saying="the migration waiting")
    await transaction.rollback()
    await admin.close()
    await (await second).close()
    assert await store.query("SELECT version FROM perdure_migrations ORDER BY version") == VERSIONS
    await store.close()


async def test_without_leave_to_migrate_the_missing_tables_are_named(fresh: str) -> None:
    with pytest.raises(SchemaMismatch, match="perdure migrate"):
        await opened(fresh, migrate=False)


async def test_a_role_without_rights_is_told_which_it_needs(fresh: str) -> None:
    await (await opened(fresh)).close()
    async with a_role("GRANT USAGE ON SCHEMA {schema} TO {role}", fresh) as (url, _, _, _):
        with pytest.raises(StoreDenied, match="grant"):
            await opened(url)


async def test_a_role_without_any_right_to_create_runs_whole_workflows(fresh: str) -> None:
    await (await opened(fresh)).close()
    async with a_role("REVOKE ALL ON SCHEMA {schema} FROM {role}", fresh) as (url, admin, schema, role):
        await admin.execute(f"GRANT USAGE ON SCHEMA {schema} TO {role}")
        await admin.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {role}")
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            clerk = await asyncpg.connect(url.partition("?")[0])
            try:
                await clerk.execute(f"CREATE TABLE {schema}.more (a int)")
            finally:
                await clerk.close()
        await greet_through(url)


async def test_a_role_that_owns_nothing_but_its_schema_can_migrate(fresh: str) -> None:
    async with a_role("CREATE SCHEMA {schema} AUTHORIZATION {role}", fresh) as (url, _, _, _):
        await greet_through(url)


async def test_a_schema_may_have_capital_letters(schemas: Schemas) -> None:
    async with schemas.one(fresh=True) as url:
        schema = f"Test_{uuid.uuid4().hex}"
        url = f"{url.rpartition('schema=')[0]}schema={schema}&prefix=shop_"
        admin = await asyncpg.connect(postgres_dsn())
        try:
            await greet_through(url)
            tables = await admin.fetch("SELECT tablename FROM pg_tables WHERE schemaname = $1", schema)
            assert {row[0] for row in tables} == {f"shop_{name}" for name in (*TABLES, "migrations")}
        finally:
            await admin.execute(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE')
            await admin.close()


@pytest.mark.usefixtures("straight")
async def test_a_session_is_not_reset_between_two_uses(store: PostgresStore) -> None:
    admin = await asyncpg.connect(postgres_dsn())
    [(pid,)] = await store.query("SELECT pg_backend_pid()")
    for run_id in ("a", "b"):
        await store.get(run_id)
        last = await admin.fetchval("SELECT query FROM pg_stat_activity WHERE pid = $1", pid)
        assert last.lstrip().startswith("SELECT")
        assert await store.query("SELECT pg_backend_pid()") == [(pid,)]
    await admin.close()


@pytest.mark.usefixtures("straight")
async def test_a_life_begins_on_the_connections_that_are_there(store: PostgresStore) -> None:
    before = await store.query("SELECT pg_backend_pid()")
    await store.register(a_worker("w", lease=1_500_000))
    assert await store.query("SELECT pg_backend_pid()") == before


async def test_no_connection_is_more_patient_than_a_life_that_begins_allows(store: PostgresStore) -> None:
    pool = store._pools.here()
    idle, used = await pool.take(), await pool.take()
    pool.give(idle)
    await store.register(a_worker("w", lease=1_250_000))
    pool.give(used)
    for connection in (idle, used):
        assert not connection.is_closed()
        await lose_patience(connection)


async def test_a_connection_that_is_opened_while_a_life_begins_is_no_more_patient(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def connect_slowly(*args: Any, **options: Any) -> PostgresConnection:
        connection = await connect(*args, **options)
        store._timeouts = store._timeouts.within(1.25)
        return connection

    monkeypatch.setattr("perdure.store.postgres.store.connect", connect_slowly)
    await lose_patience(await store._open_connection())


async def lose_patience(connection: PostgresConnection) -> None:
    """Check that a connection gives up a statement after a second, and not after the usual twelve."""
    begun = asyncio.get_running_loop().time()
    with pytest.raises(TimeoutError):
        await connection.execute("SELECT pg_sleep(60)")
    assert asyncio.get_running_loop().time() - begun < 11
    connection.terminate()


async def test_a_server_that_is_not_there_is_unavailable_and_no_password_is_told() -> None:
    store = open_store("postgresql://me:secret@127.0.0.1:1/shop", Host())
    with pytest.raises(StoreUnavailable, match="127.0.0.1:1/shop") as caught:
        await store.open()
    assert "secret" not in str(caught.value)
    await store.close()


async def test_another_loop_has_connections_of_its_own_and_leaves_none_behind(store: PostgresStore) -> None:
    await store.register(a_worker())
    answers: list[bool] = []

    async def beat() -> None:
        answers.extend([bool(await store.heartbeat("w1")), bool(await store.heartbeat("unknown"))])

    thread = threading.Thread(target=lambda: asyncio.run(beat()))
    thread.start()
    await asyncio.to_thread(thread.join)
    assert answers == [True, False]
    assert len(store._pools) == 1


async def test_a_verb_that_is_given_up_leaves_nothing_locked(store: PostgresStore, url: str) -> None:
    await store.create([a_run("r1")], ACTOR)
    schema = url.rpartition("schema=")[2]
    other = await asyncpg.connect(postgres_dsn())
    transaction = other.transaction()
    await transaction.start()
    await other.execute(f"SELECT 1 FROM {schema}.perdure_runs FOR UPDATE")
    waiting = asyncio.create_task(store.cancel("r1", "enough", "c1", ACTOR))

    async def waits() -> bool:
        # For this transaction: other tests use the same server.
        waiting = f"{other.get_server_pid()} = ANY (pg_blocking_pids(pid))"
        return bool(await store.query(f"SELECT 1 FROM pg_stat_activity WHERE {waiting}"))

    await eventually(waits, saying="the cancellation waiting for the lock")
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await transaction.rollback()
    await other.close()
    # The session of the verb may still get the lock, and ends then. The server ends a session that stays, but later.
    await eventually(lambda: claim_ids(store), within=10, saying="the run being free")


async def test_a_connection_that_the_server_ends_is_replaced(store: PostgresStore) -> None:
    await store.create([a_run("r1")], ACTOR)
    admin = await asyncpg.connect(postgres_dsn())
    [(pid,)] = await store.query("SELECT pg_backend_pid()")
    await admin.execute("SELECT pg_terminate_backend($1)", pid)
    run = await store.get("r1")
    assert run is not None
    assert run.id == "r1"
    [(replacement,)] = await store.query("SELECT pg_backend_pid()")
    assert replacement != pid
    await admin.close()


async def test_a_pooler_that_forgets_statements_is_noticed(store: PostgresStore) -> None:
    await store.create([a_run("r1")], ACTOR)
    assert await store.get("r1") is not None
    # A pooler in transaction mode replaces the session behind the connection.
    await store.query("DEALLOCATE ALL")
    assert await store.get("r1") is not None
    assert not store._prepares
    lease = await held(store, "r2")
    await commit(store, lease, a_record(0))
    assert len(await store.history("r2")) == 1


def test_the_clock_narrows_its_bounds_and_follows_a_clock_that_was_set() -> None:
    system = ManualSystem()
    clock = ServerClock(system, None)
    asked = clock.start_measurement()
    system.advance(1)
    first = clock.finish_measurement(asked, 1_000_000_000)
    assert first == 1_000_000_000
    asked = clock.start_measurement()
    system.advance(0.001)
    # The first answer took half a second, so this one is more exact.
    assert clock.finish_measurement(asked, 1_000_501_000) == 1_000_501_000
    system.advance(2)
    assert clock.now() == 1_002_501_000
    asked = clock.start_measurement()
    assert clock.finish_measurement(asked, 5_000_000_000) == 5_000_000_000
    asked = clock.start_measurement()
    assert clock.finish_measurement(asked, 1_000_000_000) == 1_000_000_000
