"""A standby that lacks the last commits takes the place of its primary while workers are at work.

What was lost is lost: that is what asynchronous replication means. But nothing goes on from what only a worker's memory
holds: no history has a hole, and no run waits for what is not there.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from typing import Any

import asyncpg
import pytest

from perdure import Engine
from perdure.core.model.run import RunFilter, Status
from perdure.host import Host
from perdure.store import open_store
from tests.faults.failing_over import WORKFLOWS, expected, request, schedule
from tests.helpers import eventually
from tests.invariants import Known, scan_store
from tests.servers.databases import execute
from tests.servers.forwarder import Forwarder
from tests.servers.mariadb import Mariadb
from tests.servers.pgbouncer import Pgbouncer
from tests.servers.postgres import Postgres, Standby
from tests.servers.private import Missing, skip_without

WHOLE = bool(os.environ.get("PERDURE_PROVE"))
PROMOTIONS = 100 if WHOLE else 10
#: Behind a pooler, and of MariaDB, where the files of a server that is stopped are its replica.
BEHIND_A_POOLER = 20 if WHOLE else 2
OF_MARIADB = 20 if WHOLE else 2
#: Orders that are under way at each promotion, and commits that may be lost with it.
LOAD = 12 if WHOLE else 8
LOST = 80
#: No promotion takes as long, so that every lease outlives it.
LEASE = "60s"


class Cluster:
    """A primary, its standby, and an address that leads to the one that takes writes."""

    def __init__(self) -> None:
        self._primary = Postgres(durable=False)
        self._standby: Standby | None = None
        self._line: Forwarder | None = None
        self.front = Forwarder(self._primary.dsn)

    @property
    def dsn(self) -> str:
        """The server that takes writes, at its own address."""
        return self._primary.dsn

    async def start(self) -> None:
        """Start the primary and lead to it."""
        await asyncio.to_thread(self._primary.create)
        await self.front.start()

    async def stop(self) -> None:
        """Leave nothing behind."""
        await self.front.stop()
        for server in (self._primary, self._standby):
            if server is not None:
                await asyncio.to_thread(server.remove)

    async def follow(self) -> None:
        """Have a standby follow the primary."""
        self._line = Forwarder(self._primary.dsn)
        await self._line.start()
        self._standby = Standby(self._primary, source=self._line.dsn, durable=False)
        await asyncio.to_thread(self._standby.create)

    async def ask(self, sql: str) -> Sequence[Sequence[Any]]:
        """Run a statement on the server that takes writes."""
        connection = await asyncpg.connect(self.dsn)
        try:
            return [tuple(row) for row in await connection.fetch(sql)]
        finally:
            await connection.close()

    async def tear(self) -> None:
        """Let the standby hear no more of the primary."""
        assert self._line is not None
        self._line.cut()

    async def promote(self) -> None:
        """Have the standby take the primary's place."""
        assert self._standby is not None
        assert self._line is not None
        self.front.cut()
        await asyncio.to_thread(self._primary.remove)
        await self._line.stop()
        await asyncio.to_thread(self._standby.promote)
        self._primary, self._standby = self._standby, None
        self.front.lead_to(self._primary.dsn)


class Copies:
    """A MariaDB server, a copy of its files as of a moment, and an address that leads to the one that takes writes."""

    def __init__(self) -> None:
        self._server = Mariadb(durable=False)
        self._copy: Mariadb | None = None
        self.front = Forwarder(self._server.dsn)

    @property
    def dsn(self) -> str:
        """The server that takes writes, at its own address."""
        return self._server.dsn

    async def start(self) -> None:
        """Start the server and lead to it."""
        await asyncio.to_thread(self._server.create)
        await self.front.start()

    async def stop(self) -> None:
        """Leave nothing behind."""
        await self.front.stop()
        for server in (self._server, self._copy):
            if server is not None:
                await asyncio.to_thread(server.remove)

    async def follow(self) -> None:
        """There is nothing that follows: the copy is made when it is torn off."""

    async def ask(self, sql: str) -> Sequence[Sequence[Any]]:
        """Run a statement on the server that takes writes."""
        return await execute(self.dsn, [sql])

    async def tear(self) -> None:
        """Copy what there is, which a restart of the server makes possible."""
        await asyncio.to_thread(self._server.kill, signal.SIGTERM)
        self._copy = Mariadb(durable=False)
        await asyncio.to_thread(self._copy.resemble, self._server)
        await asyncio.to_thread(self._server.start)

    async def promote(self) -> None:
        """Have the copy take the place of the server."""
        assert self._copy is not None
        self.front.cut()
        await asyncio.to_thread(self._server.remove)
        await asyncio.to_thread(self._copy.start)
        self._server, self._copy = self._copy, None
        self.front.lead_to(self._server.dsn)


@pytest.fixture
async def copies() -> AsyncIterator[Copies]:
    copies: Copies | None = None
    try:
        copies = Copies()
        await copies.start()
        yield copies
    except Missing as missing:
        skip_without("a server of which there are copies is needed", missing)
    finally:
        if copies is not None:
            await copies.stop()


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    cluster: Cluster | None = None
    try:
        cluster = Cluster()
        await cluster.start()
        yield cluster
    except Missing as missing:
        skip_without("a server that can be promoted is needed", missing)
    finally:
        if cluster is not None:
            await cluster.stop()


@pytest.mark.timeout(7200 if WHOLE else 600)
async def test_a_promoted_standby_without_the_last_commits_leaves_no_hole_and_nothing_that_waits(
    cluster: Cluster,
) -> None:
    await _promote_again_and_again(cluster, cluster.front.dsn, PROMOTIONS, LEASE)


@pytest.mark.timeout(7200 if WHOLE else 600)
async def test_behind_a_pooler_a_promotion_leaves_no_hole_either(cluster: Cluster) -> None:
    pooler = Pgbouncer(cluster.front.dsn)
    try:
        await asyncio.to_thread(pooler.create)
        # The pooler keeps our connections, so that heartbeats tell, or commits that find no lease.
        await _promote_again_and_again(cluster, pooler.dsn, BEHIND_A_POOLER, "10s")
    finally:
        await asyncio.to_thread(pooler.remove)


@pytest.mark.timeout(7200 if WHOLE else 600)
async def test_a_copy_of_mariadb_without_the_last_commits_leaves_no_hole_and_nothing_that_waits(copies: Copies) -> None:
    await _promote_again_and_again(copies, copies.front.dsn, OF_MARIADB, LEASE)


async def _promote_again_and_again(cluster: Cluster | Copies, url: str, times: int, lease: str) -> None:
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(Engine(url, WORKFLOWS)) for _ in range(2)]
        await cluster.ask("CREATE TABLE mine (value BIGINT)")
        await schedule(engines[0])
        workers = [await stack.enter_async_context(one.worker(lease=lease, slots=20)) for one in engines]
        for number in range(times):
            lives = {worker.id for worker in workers}
            await _lose(cluster, engines[0], number)
            await _check(cluster, engines[0], number)
            await eventually(lambda: lives.isdisjoint(worker.id for worker in workers), saying="new lives")  # noqa: B023 # awaited before the next round


async def _lose(cluster: Cluster | Copies, engine: Engine, number: int) -> None:
    """Promote a standby that lacks some commits of what is under way."""
    await cluster.follow()
    asked = [asyncio.ensure_future(request(engine, f"{number}-{one}", one)) for one in range(LOAD)]
    await asyncio.sleep(0.2 * random.random())  # any moment will do
    await cluster.tear()
    known, lost = await _records(cluster), random.randrange(LOST)

    async def enough() -> bool:
        return all(one.done() for one in asked) and await _records(cluster) >= known + lost

    await eventually(enough, within=60, saying="commits that can be lost")
    await cluster.promote()
    await asyncio.gather(*asked)


async def _check(cluster: Cluster | Copies, engine: Engine, number: int) -> None:
    """Everything that is asked for again ends as it should, and nothing else is left."""
    names = {f"{number}-{one}": one for one in range(LOAD)}
    asked = await asyncio.gather(*(request(engine, name, value) for name, value in names.items()))
    for (one, single), value in zip(asked, names.values(), strict=True):
        assert await one.result("120s") == expected(value)
        assert await single.result("120s") == 2 * value
    store = open_store(cluster.dsn, Host())
    await store.open()
    try:
        assert await scan_store(store.query, Known(audited=False)) == []
        runs = (await store.list(RunFilter(), 10_000, None)).runs
        # A schedule goes on meanwhile.
        assert {run.type for run in runs if run.status is not Status.COMPLETED} <= {"losses.tick.v1"}
    finally:
        await store.close()


async def _records(cluster: Cluster | Copies) -> int:
    [row] = await cluster.ask("SELECT COUNT(*) FROM perdure_history")
    return int(row[0])
