"""A worker whose way to the server breaks, is crowded, or ends nowhere for a while: it keeps what it has and loses
track of nothing."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import pytest

from perdure import Context, Engine, Status, workflow
from perdure.host import Host
from perdure.store import Retrying, open_store
from perdure.testing.conformance.harness import ACTOR, a_run
from tests.faults.proxy import Loss, Proxy
from tests.faults.served import Served
from tests.helpers import eventually
from tests.servers.schemas import PGBOUNCER

#: Connections of a store, at the most, where a URL does not say.
POOL = 10


@pytest.fixture
async def proxy(served: Served) -> AsyncIterator[Proxy]:
    async with served.place() as (_, proxy):
        yield proxy


class Door:
    """Steps wait at it until they are let through."""

    def __init__(self) -> None:
        self.waiting = 0
        self._passes = asyncio.Semaphore(0)

    async def wait(self) -> None:
        self.waiting += 1
        await self._passes.acquire()

    def let_through(self, count: int) -> None:
        for _ in range(count):
            self._passes.release()


async def test_a_worker_finds_what_was_taken_for_it_by_a_claim_that_arrived_late(proxy: Proxy) -> None:
    door = Door()

    @workflow("broken.waits.v1")
    async def waits(ctx: Context) -> str:
        await ctx.step(door.wait)
        return "done"

    async with Engine(proxy.url, [waits]) as engine:
        runs = [await engine.start(waits()) for _ in range(3)]
        claim = proxy.lose(Loss.DELAY, about=b"'started'")
        # Once a lease, the worker gives back what it holds and does not know of: not before the late claim was seen.
        async with engine.worker(slots=1, lease=6.0):
            await eventually(lambda: door.waiting == 1)
            if not claim.fired and PGBOUNCER in os.environ:
                pytest.skip(
                    "where nothing is prepared a claim is a transaction, whose end does not say what it was about"
                )
            assert claim.fired
            # A claim that finds runs under its own name takes no others, so these have to be gone first.
            door.let_through(1)
            await eventually(lambda: door.waiting == 2)

            async def first_is_over() -> bool:
                return Status.COMPLETED in [await run.status() for run in runs]

            await eventually(first_is_over)
            await claim.deliver()
            assert Counter([await run.status() for run in runs]) == {Status.COMPLETED: 1, Status.RUNNING: 2}
            assert door.waiting == 2
            door.let_through(2)
            assert [await run.result(timeout=30) for run in runs] == ["done"] * 3
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
    # All that the pool has room for may find out at the same time, on a busy machine some time after it went down;
    # afterwards one knocks for all.
    assert len(knocks[POOL:]) <= 8
    pauses = [round(later - earlier, 3) for earlier, later in pairwise(knocks[POOL - 1 :])]
    assert len(set(pauses)) == len(pauses), "everybody would come back at the same time"
    proxy.come_up()
    assert all(created.created for [created] in await asyncio.gather(*asking))
    await store.close()


async def test_heartbeats_do_not_wait_for_a_connection_that_others_hold(proxy: Proxy) -> None:
    # Long, because the loop that sweeps shares a busy machine with the thread of the heartbeat.
    lease = 4.0
    door = Door()

    @workflow("broken.crowded.v1")
    async def crowded(ctx: Context) -> str:
        await ctx.step(door.wait)
        return "done"

    holder = open_store(proxy.url, Host())
    await holder.open()
    url = f"{proxy.url}{'&' if '?' in proxy.url else '?'}pool=1"
    async with Engine(url, [crowded]) as engine, engine.worker(lease=lease):
        run = await engine.start(crowded())
        await eventually(lambda: door.waiting == 1)
        held, let_go = asyncio.Event(), asyncio.Event()

        async def hold(tx: Any) -> None:
            await tx.fetch("SELECT id FROM perdure_runs {for_update}", {})
            held.set()
            await let_go.wait()

        holding = asyncio.ensure_future(holder._write("send", "test", hold))
        await held.wait()
        sending = [asyncio.ensure_future(run.send("news", number)) for number in range(50)]
        [begun] = await holder.workers()

        async def has_outlived_its_lease() -> bool:
            [worker] = await holder.workers()
            return worker.heartbeat_at > begun.heartbeat_at + 1.5 * lease * 1e6

        await eventually(has_outlived_its_lease)
        assert not any(one.done() for one in sending)
        let_go.set()
        await holding
        await asyncio.gather(*sending)
        door.let_through(1)
        assert await run.result(timeout=30) == "done"
        assert "reclaimed" not in [event.kind for event in await run.events()]
        assert len(await engine.workers.list()) == 1
    await holder.close()
