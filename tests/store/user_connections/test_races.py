"""Two concurrent transactions of users, on servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest

from tests.helpers import eventually
from tests.servers.databases import execute
from tests.stage import Stage
from tests.store.user_connections.libraries import AsyncCustomer, Asyncmy, Customer, plain
from tests.store.user_connections.test_starting import echo, runs

Two = tuple[Stage, Customer, Customer]


@pytest.fixture
async def two(on_server: Stage) -> AsyncIterator[Two]:
    """Two clients that have a transaction open."""
    first, second = (
        Asyncmy(on_server.url) if on_server.url.startswith("mysql") else AsyncCustomer(on_server.url) for _ in range(2)
    )
    for someone in (first, second):
        await someone.open()
        await someone.begin()
    yield on_server, first, second
    for someone in (first, second):
        await someone.close()


async def a_session_waits(stage: Stage) -> bool:
    """Tell whether a session waits for a lock."""
    if stage.url.startswith("mysql"):
        # InnoDB does not refresh its own lock tables while they are polled.
        sql = """
            SELECT 1 FROM information_schema.processlist
            WHERE db = DATABASE() AND command = 'Query' AND info LIKE '%perdure_runs%' AND id <> CONNECTION_ID()
        """
        return bool(await execute(stage.url, [sql]))
    # Other tests use the same server, in other schemas.
    schema = stage.url.rpartition("schema=")[2]
    waiting = f"wait_event_type = 'Lock' AND query LIKE '%{schema}%perdure_runs%'"
    sql = f"SELECT COUNT(*) FROM pg_stat_activity WHERE {waiting}"
    # A transaction keeps the activity that it saw first, so each query uses a new connection.
    looking = await asyncpg.connect(plain(stage.url))
    try:
        return bool(await looking.fetchval(sql))
    finally:
        await looking.close()


async def test_two_who_start_the_same_run_start_one(two: Two) -> None:
    stage, first, second = two
    engine = stage.engine(echo)
    await engine.open()
    await first.call(engine, "start", echo("x"), id="a")
    late = asyncio.ensure_future(second.call(engine, "start", echo("x"), id="a"))
    await eventually(lambda: a_session_waits(stage))
    await first.commit()
    assert (await late).id == "a"
    await second.commit()
    assert await runs(stage) == ["a"]
    assert await stage.rows("SELECT COUNT(*) FROM perdure_events") == [(1,)]


async def test_two_who_start_different_runs_do_not_wait_for_each_other(two: Two) -> None:
    stage, first, second = two
    engine = stage.engine(echo)
    await engine.open()
    for number in range(3):
        await first.call(engine, "start", echo("x"), id=f"a{number}")
        await second.call(engine, "start", echo("x"), id=f"b{number}")
        await second.call(engine, "start", echo("x"))
        await first.call(engine, "start", echo("x"))
    await first.commit()
    await second.commit()
    assert len(await runs(stage)) == 12
