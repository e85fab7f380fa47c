"""The server is killed and comes back in the middle of load: nothing is lost, nothing happens twice, work goes on by itself."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter
from collections.abc import Iterator

import pytest

from perdure import Context, Engine, Status, workflow
from perdure.host import Host
from perdure.store import Retrying, open_store
from perdure.testing.invariants import Known, scan_store
from tests.servers.postgres import Missing, Postgres

RESTARTS = 20 if os.environ.get("PERDURE_PROVE") else 3
#: Runs that are started while the server is up, each time.
LOAD = 40
STEPS = 5


@pytest.fixture
def server() -> Iterator[Postgres]:
    try:
        # What was committed must survive a crash of the server, so it has to be on the disk.
        server = Postgres(durable=True)
        server.create()
    except Missing as missing:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"a server that can be killed is needed: {missing}")
    yield server
    server.remove()


async def test_a_server_that_is_killed_under_load_costs_nothing_but_time(
    server: Postgres, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "perdure")
    done: Counter[tuple[str, int]] = Counter()

    async def act(name: str, number: int) -> int:
        done[name, number] += 1
        await asyncio.sleep(0)
        return number

    @workflow("restart.sum.v1")
    async def add(ctx: Context, name: str) -> int:
        return sum([await ctx.step(act, name, number) for number in range(STEPS)])

    engine = Engine(server.dsn, [add])
    handles = []
    async with engine, engine.worker(slots=20, lease="60s"):
        for turn in range(RESTARTS):
            names = [f"{turn}-{number}" for number in range(LOAD)]
            starts = [asyncio.create_task(engine.start(add(name), id=name)) for name in names]
            # Kill it after a part of the load, another part each time, has gone through.
            handles.append(await starts[LOAD * (turn + 1) // (RESTARTS + 1)])
            server.kill()
            await asyncio.to_thread(server.start)
            handles += [await start for start in starts]
        results = [await handle.result("60s") for handle in handles]
    assert set(results) == {sum(range(STEPS))}
    assert len(done) == RESTARTS * LOAD * STEPS
    assert set(done.values()) == {1}, "a step ran twice although its worker never lost its lease"

    store = open_store(server.dsn, Host())
    await Retrying(store, Host()).open()
    known = Known(starts=frozenset(handle.id for handle in handles))
    assert await scan_store(store.query, known) == []
    unfinished = await store.query("SELECT id FROM perdure_runs WHERE status <> ?", [Status.COMPLETED.value])
    await store.close()
    assert unfinished == []
