"""Sweeps free the rows that a stopped worker has locked, and end no other session."""

from __future__ import annotations

import asyncio
import os
import socket
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from perdure import Context, Engine, Status, workflow
from perdure.core.model.run import Reason
from perdure.core.model.turn import Block
from perdure.host import Host
from perdure.store import open_store
from perdure.store.postgres.session import session_name
from perdure.store.postgres.store import PostgresStore
from perdure.store.server.pool import Timeouts
from perdure.testing.conformance.harness import ACTOR, TYPE, a_run, a_worker, claim_ids, commit, lease_of
from tests.helpers import eventually
from tests.servers.schemas import postgres_dsn

asyncpg = pytest.importorskip("asyncpg")

#: Unique to this process, because other processes run the same tests on the same server.
NODE = f"node-{os.getpid()}"
HOST, PID = f"{NODE}.shop.example", 4711
ITS_NAME = f"shop perdure:4711@{NODE}"


@asynccontextmanager
async def a_session(url: str, name: str = ITS_NAME, *, run: str = "r1") -> AsyncIterator[Any]:
    """Open a session that has locked a run and stopped between preparing a statement and executing it."""
    schema = url.rpartition("schema=")[2].partition("&")[0]
    session = await asyncpg.connect(postgres_dsn(), server_settings={"application_name": name, "search_path": schema})
    try:
        await session.execute("BEGIN")
        await session.execute(f"SELECT 1 FROM perdure_runs WHERE id = '{run}' FOR UPDATE")
        await session._get_statement("SELECT $1::text", None)
        yield session
    finally:
        session.terminate()


async def overdue(store: PostgresStore) -> None:
    """Create a run of a worker whose lease has expired, and a run without a worker."""
    await store.create([a_run("r1")], ACTOR)
    await store.register(a_worker(host=HOST, pid=PID))
    await lease_of(store, "r1")
    await store.create([a_run("r2")], ACTOR)
    await store.query("UPDATE perdure_workers SET heartbeat_at = 0")


async def test_runs_that_a_standing_worker_has_locked_are_given_to_others(store: PostgresStore, url: str) -> None:
    await overdue(store)
    released: list[int] = []

    async def are_released() -> bool:
        # The server may take a moment to end the session; the next sweep takes what this one could not.
        released.append((await store.sweep(10)).released)
        return sum(released) == 1

    async with a_session(url) as session:
        await eventually(are_released)
        await eventually(session.is_closed)
    await store.register(a_worker("w2"))
    assert set(await claim_ids(store, "w2", limit=2)) == {"r1", "r2"}


async def test_a_run_that_it_only_looked_at_is_free_again(store: PostgresStore, url: str) -> None:
    await overdue(store)
    async with a_session(url, run="r2"):
        await store.sweep(10)
        await store.register(a_worker("w2"))
        found: set[str] = set()

        async def all_of_them() -> bool:
            found.update(await claim_ids(store, "w2"))
            return found == {"r1", "r2"}

        await eventually(all_of_them)


@workflow(TYPE)
async def nothing(ctx: Context) -> None: ...


async def test_a_worker_can_start_beside_one_that_stands_on_what_it_wants_to_try_again(
    store: PostgresStore, url: str
) -> None:
    await overdue(store)
    lease = await lease_of(store, "r2", "w1", nonce="another")
    await commit(store, lease, next=Block(Reason.DIVERGED, "{}"))
    async with a_session(url, run="r2"), Engine(url, [nothing]) as engine, engine.worker(lease=1.0):
        for id in ("r1", "r2"):
            run = await engine.get(id)
            await run.result("30s")
            assert await run.status() is Status.COMPLETED


async def test_so_is_one_whose_session_cannot_get_rid_of_its_answer(store: PostgresStore, url: str) -> None:
    await overdue(store)
    async with a_session(url) as session:
        asking = asyncio.ensure_future(session.execute("SELECT repeat('x', 1000000) FROM generate_series(1, 100)"))
        session._transport.pause_reading()
        waiting = f"application_name = '{ITS_NAME}' AND wait_event = 'ClientWrite'"
        await eventually(lambda: store.query(f"SELECT 1 FROM pg_stat_activity WHERE {waiting}"))
        assert (await store.sweep(10)).released == 1
    await asyncio.wait([asking])
    assert asking.exception() is not None


async def buried(store: PostgresStore) -> None:
    """Register a worker that was declared dead just now and held no run."""
    await store.create([a_run("r1")], ACTOR)
    await store.register(a_worker(host=HOST, pid=PID, lease=1))
    assert (await store.sweep(10)).dead_workers == ("w1",)


async def test_what_it_has_locked_is_freed_although_it_was_declared_dead_before_it_came_to_a_stand(
    store: PostgresStore, url: str
) -> None:
    """The session was active at the first sweep, and has locked rows other than its runs."""
    await buried(store)
    async with a_session(url) as session:

        async def is_ended() -> bool:
            await store.sweep(10)
            return bool(session.is_closed())

        await eventually(is_ended)


async def test_one_that_was_declared_dead_and_is_no_longer_at_a_stand_keeps_what_it_has_just_begun(
    store: PostgresStore, url: str
) -> None:
    await buried(store)
    # A transaction younger than an hour may still be active.
    store._timeouts = Timeouts(statement=3600.0)
    async with a_session(url) as session:
        await store.sweep(10)
        assert await session.fetchval("SELECT 1") == 1


async def test_a_process_with_a_worker_in_its_next_life_keeps_its_sessions(store: PostgresStore, url: str) -> None:
    await buried(store)
    await store.register(a_worker("w2", host=HOST, pid=PID, lease=1_000_000))
    await store.query("UPDATE perdure_workers SET lease = 3600000000 WHERE id = 'w2'")
    old = f"application_name = '{ITS_NAME}' AND xact_start < clock_timestamp() - interval '1.5 s'"
    async with a_session(url) as session:
        await eventually(lambda: store.query(f"SELECT 1 FROM pg_stat_activity WHERE {old}"))
        await store.sweep(10)
        assert await session.fetchval("SELECT 1") == 1


@pytest.mark.parametrize(
    "name",
    ["shop", "perdure", f"perdure:471@{NODE}", "perdure:4711@node-x", f"perdure:4711@{NODE}1", session_name(), ""],
    ids=["another", "no process", "shorter", "elsewhere", "longer", "this process", "nameless"],
)
async def test_sessions_of_others_stay(store: PostgresStore, url: str, name: str) -> None:
    await overdue(store)
    async with a_session(url, name, run="r2") as session:
        assert (await store.sweep(10)).released == 1
        assert not session.is_closed()


async def test_so_do_those_of_its_own_that_hold_nothing(store: PostgresStore, url: str) -> None:
    await overdue(store)
    async with a_session(url) as session:
        await session.execute("ROLLBACK")
        assert (await store.sweep(10)).released == 1
        assert await session.fetchval("SELECT 1") == 1


async def test_a_worker_in_time_keeps_its_sessions(store: PostgresStore, url: str) -> None:
    await overdue(store)
    await store.register(a_worker("w2", host=f"{NODE}-2", pid=1))
    await store.query("UPDATE perdure_workers SET heartbeat_at = started_at, lease = 3600000000 WHERE id = 'w2'")
    async with a_session(url, f"perdure:1@{NODE}-2", run="r2") as session:
        assert (await store.sweep(10)).dead_workers == ("w1",)
        assert not session.is_closed()


FORBIDDEN = {
    "refused": "REVOKE EXECUTE ON FUNCTION pg_terminate_backend FROM public",
    # Some servers speak the protocol and lack the function.
    "unknown": "ALTER FUNCTION pg_terminate_backend RENAME TO no_longer_there",
}


@pytest.mark.parametrize("how", FORBIDDEN)
async def test_without_the_right_to_end_it_a_sweep_says_so_and_goes_on(
    store: PostgresStore, url: str, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    """Use a database of its own, because privileges on functions belong to a database."""
    name = f"apart_{uuid.uuid4().hex}"
    await store.query(f"CREATE DATABASE {name}")
    await store.query(f"CREATE ROLE {name} LOGIN")
    dsn = postgres_dsn().rpartition("/")[0] + f"/{name}"
    admin = await asyncpg.connect(dsn)
    await admin.execute(f"{FORBIDDEN[how]}; CREATE SCHEMA {name} AUTHORIZATION {name}")
    other = open_store(dsn.replace("postgres@", f"{name}@") + f"?schema={name}", Host())
    assert isinstance(other, PostgresStore)
    async with AsyncExitStack() as stack:
        await other.open()
        stack.push_async_callback(other.close)
        await overdue(other)
        assert (await other.sweep(10)).released == 1
    assert "may not call pg_terminate_backend" in caplog.text
    await admin.close()
    await store.query(f"DROP DATABASE {name}")
    await store.query(f"DROP ROLE {name}")


async def test_what_another_role_has_locked_stays_locked_and_no_sweep_hangs(store: PostgresStore, url: str) -> None:
    role = f"clerk_{uuid.uuid4().hex}"
    schema = url.rpartition("schema=")[2]
    await overdue(store)
    await store.query(f"CREATE ROLE {role} LOGIN")
    await store.query(f"GRANT USAGE ON SCHEMA {schema} TO {role}")
    await store.query(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {role}")
    clerk = open_store(url.replace("postgres@", f"{role}@"), Host(), migrate=False)
    await clerk.open()
    await clerk.register(a_worker("w2", lease=1_000_000))
    # The short lease is for the store, which has little patience then. The worker is not to die as well.
    await store.query("UPDATE perdure_workers SET lease = 3600000000 WHERE id = 'w2'")
    async with a_session(url) as session:
        swept = await clerk.sweep(10)
        assert (swept.dead_workers, swept.released) == (("w1",), 0)
        assert not session.is_closed()
    assert (await clerk.sweep(10)).released == 1
    await clerk.close()
    await store.query(f"DROP OWNED BY {role}")
    await store.query(f"DROP ROLE {role}")


async def test_the_name_of_a_session_says_whose_it_is_and_keeps_what_the_user_calls_it(url: str) -> None:
    process = f"+perdure:{os.getpid()}@{socket.gethostname().partition('.')[0][-32:]}"
    for given, name in [("", process), ("&application_name=billing+jobs", f"billing jobs {process}")]:
        store = open_store(f"{url}{given}", Host())
        assert isinstance(store, PostgresStore)
        await store.open()
        assert await store.query("SELECT current_setting('application_name')") == [(name,)]
        await store.close()


def test_a_name_that_is_too_long_for_the_server_loses_what_matters_least() -> None:
    assert session_name("x" * 100).endswith(f" {session_name()}")
    assert len(session_name("x" * 100)) == 63
    assert session_name("Bücher").startswith("B?cher perdure:")
