"""The cost of a sweep, and that it waits for no lock: many workers sweep at once if many die."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from perdure.core.model.run import Status
from perdure.host import Host
from perdure.store import open_store
from perdure.store.postgres import driver
from perdure.store.postgres.store import PostgresStore
from perdure.store.server.pool import Timeouts
from perdure.testing.conformance.harness import ACTOR, a_run, a_worker, claim_ids
from tests.servers.schemas import postgres_dsn


async def die(store: PostgresStore, worker: str, *runs: str) -> None:
    """Let a worker claim runs and miss its heartbeats."""
    await store.register(a_worker(worker, lease=3_600_000_000))
    await store.create([a_run(run_id) for run_id in runs], ACTOR)
    assert set(await claim_ids(store, worker, limit=len(runs))) == set(runs)
    await store.query(f"UPDATE perdure_workers SET heartbeat_at = 0 WHERE id = '{worker}'")


@asynccontextmanager
async def locking(url: str, *statements: str) -> AsyncIterator[Any]:
    """Open a transaction that has locked rows."""
    session = await asyncpg.connect(postgres_dsn(), server_settings={"search_path": url.rpartition("schema=")[2]})
    try:
        await session.execute("BEGIN")
        for statement in statements:
            await session.execute(statement)
        yield session
    finally:
        await session.close()


async def test_a_sweep_leaves_out_what_another_one_has_in_its_hands(store: PostgresStore, url: str) -> None:
    store._timeouts = Timeouts(statement=10.0, lock=0.1)
    await die(store, "w1", "r1", "r2")
    await die(store, "w2", "r3")
    async with locking(url, "SELECT 1 FROM perdure_workers WHERE id = 'w1' FOR UPDATE"):
        swept = await store.sweep(10)
        assert (swept.dead_workers, swept.released) == (("w2",), 1)
    swept = await store.sweep(10)
    assert (swept.dead_workers, swept.released) == (("w1",), 2)


async def test_a_sweep_buries_a_worker_one_of_whose_runs_is_locked(store: PostgresStore, url: str) -> None:
    store._timeouts = Timeouts(statement=10.0, lock=0.1)
    await die(store, "w1", "r1", "r2")
    async with locking(url, "SELECT 1 FROM perdure_runs WHERE id = 'r1' FOR UPDATE"):
        swept = await store.sweep(10)
        assert (swept.dead_workers, swept.released) == (("w1",), 1)
    assert (await store.sweep(10)).released == 1
    runs = [await store.get(run_id) for run_id in ("r1", "r2")]
    assert [run and run.status for run in runs] == [Status.PENDING] * 2


async def test_sweeps_that_come_at_once_give_back_each_run_once(store: PostgresStore, url: str) -> None:
    for number in range(4):
        await die(store, f"w{number}", *(f"r{number}-{place}" for place in range(10)))
    others = [open_store(url, Host()) for _ in range(4)]
    for other in others:
        await other.open()
    swept = await asyncio.gather(*(other.sweep(7) for other in others for _ in range(10)))
    for other in others:
        await other.close()
    assert sorted(worker for one in swept for worker in one.dead_workers) == ["w0", "w1", "w2", "w3"]
    assert sum(one.released for one in swept) == 40
    assert await store.query("SELECT DISTINCT token FROM perdure_runs") == [(2,)]


async def test_the_dead_are_buried_in_one_statement(store: PostgresStore) -> None:
    await die(store, "w1", "r1", "r2")
    seen: list[str] = []
    await store.trace(seen.append)
    await store.get("warm")
    # The driver tells of a statement one turn of the loop later.
    await asyncio.sleep(0)
    seen.clear()
    assert (await store.sweep(10)).released == 2
    await asyncio.sleep(0)
    # A notification follows what was committed before, on another connection and at any time.
    seen = [statement for statement in seen if "pg_notify" not in statement]
    # The preview, the dead workers, their sessions and the reclaim: none within a transaction that could stay open.
    assert len(seen) == 4, seen
    assert not any(statement.startswith("BEGIN") for statement in seen)


async def test_a_new_session_asks_for_no_types(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask(*_: object) -> Any:
        raise AssertionError("the driver asks for types")

    monkeypatch.setattr(driver._NamedSession, "_introspect_types", ask)
    store._pools.here().flush()
    await die(store, "w1", "r1", "r2")
    await store.sweep(10)
    # The transaction claims a run that was lost, and its parameters are arrays.
    await store.register(a_worker("w2"))
    assert await claim_ids(store, "w2", limit=2)
    assert len(await store.get_many(["r1", "r2"])) == 2
