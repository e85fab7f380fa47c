"""The server is killed and comes back in the middle of load: nothing is lost, nothing happens twice, work goes on by
itself."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure import Engine, Handle
from perdure.core.model.run import RunFilter, Status
from perdure.host import Host
from perdure.store import open_store
from tests.faults import app, labour
from tests.faults.family import Child, Family
from tests.faults.roles import WORKFLOWS
from tests.helpers import eventually
from tests.invariants import Known, scan_store
from tests.servers.mariadb import Mariadb
from tests.servers.postgres import Postgres
from tests.servers.private import Missing, skip_without

WHOLE = bool(os.environ.get("PERDURE_PROVE"))
RESTARTS = 20 if WHOLE else 2
WORKERS = 2
#: Runs that are started while the server is up, each time, and what each of them does.
LOAD = 40
STEPS = 4
#: No outage lasts as long, so no worker loses its runs.
LEASE = 30.0


@pytest.fixture(params=[Postgres, Mariadb])
def server(request: pytest.FixtureRequest) -> Iterator[Postgres | Mariadb]:
    try:
        # What was committed must survive a crash of the server, so it has to be on the disk.
        server: Postgres | Mariadb = request.param(durable=True)
        server.create()
    except Missing as missing:
        skip_without("a server that can be killed is needed", missing)
    yield server
    server.remove()


@pytest.mark.timeout(1200 if WHOLE else 300)
async def test_a_server_that_is_killed_under_load_costs_nothing_but_time(
    processes: Family, server: Postgres | Mariadb, tmp_path: Path
) -> None:
    (tmp_path / "url").write_text(server.dsn)
    ledger = tmp_path / "ledger"
    async with Engine(server.dsn, WORKFLOWS) as engine:
        options = {"lease": LEASE, "slots": 20, "life": 1200.0}
        workers = [await processes.fork("work", tmp_path, **options) for _ in range(WORKERS)]
        # A worker that cannot reach the server when it starts says so and ends.
        await eventually(lambda: all(any(line["verb"] == "claim" for line in one.answers()) for one in workers))
        handles: list[Handle[list[str]]] = []
        for turn in range(RESTARTS):
            names = [f"{turn}-{number}" for number in range(LOAD)]
            starting = [asyncio.ensure_future(start(engine, name, ledger)) for name in names]
            # Kill it after a part of the load, another part each time, has gone through.
            await starting[random.randrange(LOAD)]
            server.kill(random.choice([server.deadly, signal.SIGKILL]))
            await asyncio.to_thread(server.start)
            handles += await asyncio.gather(*starting)
        results = [await handle.result("60s") for handle in handles]
        assert {len(result) for result in results} == {STEPS + 3}
        await stop(workers)
    await check(server.dsn, ledger, handles)


async def start(engine: Engine, name: str, ledger: Path) -> Handle[list[str]]:
    handle = await engine.start(labour.several(str(ledger), STEPS), id=name)
    await handle.send("go", f"go {name}", key="go")
    return handle


async def stop(workers: list[Child]) -> None:
    for worker in workers:
        worker.signal(signal.SIGTERM)
        assert await worker.ended() == 0, worker.noise()
    assert "was declared dead" not in workers[0].noise()


async def check(url: str, ledger: Path, handles: list[Handle[list[str]]]) -> None:
    """No worker lost a lease, so every step was executed exactly once; and nothing in the database is wrong."""
    executed = Counter((line["run"], line["location"]) for line in app.read(ledger) if line["did"] == "step")
    assert len(executed) == RESTARTS * LOAD * (STEPS + 2)
    assert set(executed.values()) == {1}, [where for where, times in executed.items() if times > 1]
    store = open_store(url, Host())
    await store.open()
    known = Known(
        starts=frozenset(handle.id for handle in handles),
        sends=frozenset((handle.id, "go") for handle in handles),
        effects=tuple(executed.elements()),
    )
    assert await scan_store(store.query, known) == []
    assert not [
        run.id for run in (await store.list(RunFilter(), 10_000, None)).runs if run.status is not Status.COMPLETED
    ]
    await store.close()
