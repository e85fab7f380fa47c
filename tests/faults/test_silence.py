"""The network between a worker and the server falls silent without closing anything, for longer than the lease and for
less."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from perdure import Engine, Handle
from perdure.core.model.worker_info import WorkerStatus
from perdure.host import Host
from perdure.store import open_store
from tests.faults import app, labour
from tests.faults.family import Child, Family
from tests.faults.proxy import Proxy
from tests.faults.roles import WORKFLOWS
from tests.faults.served import Served
from tests.helpers import eventually
from tests.invariants import scan_store


class Site:
    """Workers, one of them behind a proxy, and the client's view of what they do."""

    def __init__(self, processes: Family, directory: Path, engine: Engine, proxy: Proxy) -> None:
        self.engine = engine
        self.proxy = proxy
        self.ledger = str(directory / "ledger")
        self._directory = directory
        self._processes = processes

    async def worker(self, url: str, lease: float) -> Child:
        worker = await self._processes.fork("work", self._directory, url=url, lease=lease)
        await eventually(lambda: any(line["verb"] == "claim" for line in worker.answers()))
        return worker

    def steps(self, location: str) -> list[int]:
        """Which processes executed a step, in order."""
        return [line["pid"] for line in app.read(Path(self.ledger)) if line.get("location") == location]

    async def events(self, run: Handle[Any]) -> Counter[str]:
        return Counter(event.kind for event in await run.events())

    async def lives(self, worker: Child) -> list[WorkerStatus]:
        return sorted(one.status for one in await self.engine.workers.list() if one.pid == worker.pid)

    async def pass_time(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        await eventually(lambda: loop.time() > until)


@pytest.fixture
async def site(processes: Family, served: Served, tmp_path: Path) -> AsyncIterator[Site]:
    # The server does not learn that a socket is dead; a session that ends meanwhile has to be gone before the tables
    # are emptied.
    async with served.place(fresh=True) as (url, proxy):
        async with Engine(url, WORKFLOWS) as engine:
            yield Site(processes, tmp_path, engine, proxy)
        store = open_store(url, Host())
        await store.open()
        assert await scan_store(store.query) == []
        await store.close()


@pytest.mark.parametrize("connections", [True, False], ids=["sockets live on", "sockets are dead"])
async def test_a_worker_cut_off_past_its_lease_is_replaced_says_so_and_comes_back(
    site: Site, connections: bool
) -> None:
    first = await site.worker(site.proxy.url, lease=3)
    run = await site.engine.start(labour.waiting(site.ledger))
    await eventually(lambda: site.steps("waits") == [first.pid])
    site.proxy.fall_silent()
    second = await site.worker(site.engine.url, lease=6)
    await eventually(lambda: site.steps("waits") == [first.pid, second.pid])
    labour.gate(site.ledger).touch()
    result = await run.result(timeout=30)
    site.proxy.recover(connections=connections)
    await eventually(lambda: "was declared dead" in first.noise())
    second.signal(signal.SIGTERM)
    assert await second.ended() == 0, second.noise()
    again = await site.engine.start(labour.quick(site.ledger))
    await again.result(timeout=30)
    # What it had in its hands was not taken from it any more, and what follows from that was never begun.
    assert site.steps("effect") == [second.pid, first.pid]
    assert await run.result() == result
    assert (await site.events(run))["reclaimed"] == 1
    assert await site.lives(first) == [WorkerStatus.ALIVE, WorkerStatus.DEAD]


@pytest.mark.parametrize("connections", [True, False], ids=["sockets live on", "sockets are dead"])
async def test_a_silence_shorter_than_the_lease_costs_nothing_but_time(site: Site, connections: bool) -> None:
    # Long enough for a heartbeat that is lost in the silence, and for a machine that is slow to send the next one.
    lease = 8.0
    first = await site.worker(site.proxy.url, lease=lease)
    second = await site.worker(site.engine.url, lease=lease)
    run = await site.engine.start(labour.waiting(site.ledger))
    await eventually(lambda: site.steps("waits"))
    site.proxy.fall_silent()
    await site.pass_time(0.1 * lease)
    site.proxy.recover(connections=connections)
    await site.pass_time(1.2 * lease)
    labour.gate(site.ledger).touch()
    await run.result(timeout=30)
    assert len(site.steps("waits")) == 1
    assert not (await site.events(run))["reclaimed"]
    for worker in (first, second):
        assert await site.lives(worker) == [WorkerStatus.ALIVE]
