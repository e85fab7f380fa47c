"""A worker whose way to the server breaks, is crowded, or ends nowhere for a while: it keeps what it has and loses track of nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from perdure import Context, Engine, Status, workflow
from tests.faults.proxy import Loss, Proxy, proxy_to
from tests.faults.wire import PostgresWire
from tests.helpers import eventually
from tests.servers.schemas import Schemas


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
