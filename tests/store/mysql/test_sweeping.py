"""A sweep waits for no lock: many workers sweep at once if many die."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from perdure.store.mysql.driver import MysqlConnector
from perdure.store.mysql.store import MysqlStore
from perdure.store.url import MysqlUrl, parse
from perdure.testing.conformance.harness import ACTOR, a_run, a_worker, claim_ids


async def die(store: MysqlStore, worker: str, *runs: str) -> None:
    """Let a worker claim runs and miss its heartbeats."""
    await store.register(a_worker(worker, lease=1_000_000))
    await store.create([a_run(run_id) for run_id in runs], ACTOR)
    assert set(await claim_ids(store, worker, limit=len(runs))) == set(runs)
    await store.query(f"UPDATE perdure_workers SET heartbeat_at = 0 WHERE id = '{worker}'")


@asynccontextmanager
async def locking(url: str, statement: str) -> AsyncIterator[None]:
    """Open a transaction that has locked rows."""
    where = parse(url)
    assert isinstance(where, MysqlUrl)
    session = await MysqlConnector(where).connect()
    await session.send(["SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED", "BEGIN", statement])
    try:
        yield
    finally:
        session.terminate()


async def test_a_sweep_leaves_out_what_another_one_has_in_its_hands(store: MysqlStore, url: str) -> None:
    await die(store, "w1", "r1", "r2")
    await die(store, "w2", "r3")
    async with locking(url, "SELECT 1 FROM perdure_workers WHERE id = 'w1' FOR UPDATE"):
        swept = await store.sweep(10)
        assert (swept.dead_workers, swept.released) == (("w2",), 1)


async def test_a_sweep_buries_a_worker_one_of_whose_runs_is_locked(store: MysqlStore, url: str) -> None:
    await die(store, "w1", "r1", "r2")
    async with locking(url, "SELECT 1 FROM perdure_runs WHERE id = 'r1' FOR UPDATE"):
        swept = await store.sweep(10)
        assert (swept.dead_workers, swept.released) == (("w1",), 1)
