"""A worker whose way to the server breaks, is crowded, or ends nowhere for a while: it keeps what it has and loses track of nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise

import pytest

from perdure import Context, Engine, Status, workflow
from perdure.host import Host
from perdure.store import Retrying, open_store
from perdure.testing.conformance.harness import ACTOR, a_run
from tests.faults.proxy import Loss, Proxy, proxy_to
from tests.faults.wire import PostgresWire
from tests.helpers import eventually
from tests.servers.schemas import Schemas, postgres_dsn

asyncpg = pytest.importorskip("asyncpg")


@pytest.fixture
async def proxy(schemas: Schemas) -> AsyncIterator[Proxy]:
    async with schemas.one() as url, proxy_to(url, PostgresWire) as proxy:
        yield proxy


class Door:
    """Steps wait at it until it is opened."""

    def __init__(self) -> None:
        self.waiting = 0
        self._open = asyncio.Event()

    async def wait(self) -> None:
        self.waiting += 1
        await self._open.wait()

    def open(self) -> None:
        self._open.set()


async def test_a_worker_finds_what_was_taken_for_it_by_a_claim_that_arrived_late(proxy: Proxy) -> None:
    door = Door()

    @workflow("broken.waits.v1")
    async def waits(ctx: Context) -> str:
        await ctx.step(door.wait)
        return "done"

    async with Engine(proxy.url, [waits]) as engine:
        runs = [await engine.start(waits()) for _ in range(2)]
        claim = proxy.lose(Loss.DELAY, about=b"'claimed'")
        async with engine.worker(slots=1, lease=1.5):
            await eventually(lambda: door.waiting == 1)
            assert claim.fired
            await claim.deliver()
            assert [await run.status() for run in runs] == [Status.RUNNING] * 2
            assert door.waiting == 1
            door.open()
            assert [await run.result(timeout=30) for run in runs] == ["done", "done"]
        events = [event.kind for run in runs for event in await run.events()]
        assert events.count("released") == 1
        assert "reclaimed" not in events


async def test_a_server_that_comes_back_is_not_stampeded(proxy: Proxy) -> None:
    loop = asyncio.get_running_loop()
    store = Retrying(open_store(proxy.url, Host()), Host())
    await store.open()
    proxy.go_down()
    before, down = len(proxy.arrivals), loop.time()
    asking = [asyncio.ensure_future(store.create([a_run(f"r{number}")], ACTOR)) for number in range(50)]
    await eventually(lambda: loop.time() > down + 2.5)
    knocks = proxy.arrivals[before:]
    # All that the pool has room for may find out at the same time; afterwards one knocks for all.
    assert len([time for time in knocks if time > down + 0.3]) <= 8
    assert len(knocks) <= 20
    pauses = [round(later - earlier, 3) for earlier, later in pairwise(knocks) if later > down + 0.3]
    assert len(set(pauses)) == len(pauses), "everybody would come back at the same time"
    proxy.come_up()
    assert all(created.created for [created] in await asyncio.gather(*asking))
    await store.close()


async def test_heartbeats_do_not_wait_for_a_connection_that_others_hold(proxy: Proxy) -> None:
    lease = 1.0
    door = Door()
    schema = proxy.url.partition("schema=")[2].partition("&")[0]

    @workflow("broken.crowded.v1")
    async def crowded(ctx: Context) -> str:
        await ctx.step(door.wait)
        return "done"

    other = await asyncpg.connect(postgres_dsn())
    async with Engine(f"{proxy.url}&pool=1", [crowded]) as engine, engine.worker(lease=lease):
        run = await engine.start(crowded())
        await eventually(lambda: door.waiting == 1)
        transaction = other.transaction()
        await transaction.start()
        await other.execute(f"SELECT 1 FROM {schema}.perdure_runs FOR UPDATE")
        sending = [asyncio.ensure_future(run.send("news", number)) for number in range(50)]

        async def beats() -> int:
            return int(await other.fetchval(f"SELECT max(heartbeat_at) FROM {schema}.perdure_workers"))

        begun = await beats()

        async def has_outlived_several_leases() -> bool:
            return await beats() > begun + 2.5 * lease * 1e6

        await eventually(has_outlived_several_leases)
        assert not any(one.done() for one in sending)
        await transaction.rollback()
        await asyncio.gather(*sending)
        door.open()
        assert await run.result(timeout=30) == "done"
        assert "reclaimed" not in [event.kind for event in await run.events()]
        assert len(await engine.workers()) == 1
    await other.close()
