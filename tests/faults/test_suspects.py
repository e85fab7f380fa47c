"""Runs that were in the hands of workers that died: the innocent come back together, and what kills its workers is
found."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from math import ceil, log2
from pathlib import Path
from typing import Any

import pytest

from perdure import Engine, Handle, Status
from tests.faults import app, labour
from tests.faults.family import Child, Family
from tests.faults.homes import Home, Homes
from tests.faults.roles import WORKFLOWS
from tests.helpers import eventually

PROVE = bool(os.environ.get("PERDURE_PROVE"))
#: Runs in flight. With 500, one that kills its workers is set aside after 14 of them at the most, and each death takes
#: two leases at the most: the
#: number that is in the guide (operations.md), 28 leases.
CROWD = 500 if PROVE else 60
LEASE = 2.0
#: Deaths of workers at the most: two of any, one of all suspects, one for each time that they are halved, and three of
#: the last one alone.
MOST_DEATHS = 2 + 1 + (ceil(log2(CROWD)) - 1) + 3

pytestmark = pytest.mark.timeout(1200)


class Ward:
    """One database, the client's view of it, and a supervisor that keeps workers running."""

    def __init__(self, processes: Family, home: Home, engine: Engine) -> None:
        self.engine = engine
        self.ledger = str(home.directory / "ledger")
        self.deaths = 0
        self._directory = home.directory
        self._processes = processes

    async def worker(self, **options: Any) -> Child:
        return await self._processes.fork("work", self._directory, life=1200.0, lease=LEASE, **options)

    async def supervise(self, **options: Any) -> None:
        """Keep a worker running, as an init system would."""
        while True:
            worker = await self.worker(**options)
            assert await worker.ended() == -signal.SIGKILL, worker.noise()
            self.deaths += 1

    async def start(self, harmless: int, deadly: int = 0, seconds: float = 0.5) -> list[Handle[Any]]:
        kinds = [False] * (harmless // 2) + [True] * deadly + [False] * (harmless - harmless // 2)
        return await self.engine.start_many([labour.harming(self.ledger, kind, seconds) for kind in kinds])

    async def statuses(self, runs: Sequence[Handle[Any]]) -> list[Status]:
        found = {run.id: run.status for run in await self.engine._session.store.get_many([run.id for run in runs])}
        return [found[run.id] for run in runs]

    async def kill_one_that_holds(self, runs: Sequence[Handle[Any]]) -> None:
        """Have a worker take all of the runs, and kill it."""
        worker = await self.worker(slots=len(runs) * 3)

        async def holds_all() -> bool:
            return set(await self.statuses(runs)) == {Status.RUNNING}

        await eventually(holds_all, within=60)
        worker.signal(signal.SIGKILL)
        await worker.ended()

        async def are_back() -> bool:
            return Status.RUNNING not in await self.statuses(runs)

        sweeping = await self._processes.fork("work", self._directory, lease=LEASE, types=["labour.quick.v1"])
        await eventually(are_back, within=60)
        sweeping.signal(signal.SIGTERM)
        await sweeping.ended()


@asynccontextmanager
async def ward(processes: Family, homes: Homes, directory: Path) -> AsyncGenerator[Ward]:
    async with homes.at(directory / "ward") as home, Engine(home.url, WORKFLOWS) as engine:
        yield Ward(processes, home, engine)


async def test_of_many_runs_the_one_that_kills_its_workers_is_set_aside_and_the_others_complete(
    processes: Family, homes: Homes, tmp_path: Path
) -> None:
    async with ward(processes, homes, tmp_path) as place:
        runs = await place.start(CROWD - 1, deadly=1)
        began = time.monotonic()
        supervising = asyncio.ensure_future(place.supervise(slots=CROWD))

        async def all_are_over() -> bool:
            assert not supervising.done(), supervising.result()
            await asyncio.sleep(0.2)  # the pace of the question
            return not {Status.PENDING, Status.RUNNING, Status.WAITING} & set(await place.statuses(runs))

        await eventually(all_are_over, within=1000)
        leases = (time.monotonic() - began) / LEASE
        supervising.cancel()
        print(f"{CROWD} runs: {place.deaths} deaths, {leases:.1f} leases")
        expected = [Status.COMPLETED] * CROWD
        expected[(CROWD - 1) // 2] = Status.BLOCKED
        assert await place.statuses(runs) == expected
        assert place.deaths <= MOST_DEATHS
        assert len([line for line in app.read(Path(place.ledger)) if line.get("location") == "harms"]) == place.deaths


async def test_runs_that_lost_two_workers_are_back_together_beside_other_work(
    processes: Family, homes: Homes, tmp_path: Path
) -> None:
    async with ward(processes, homes, tmp_path) as place:
        runs = await place.start(30, seconds=3.0)
        for _ in range(2):
            await place.kill_one_that_holds(runs)
        assert {run.claims for run in await place.engine._session.store.get_many([run.id for run in runs])} == {2}
        others: list[Handle[Any]] = []
        worker = await place.worker(slots=100)

        async def all_are_over() -> bool:
            others.append(await place.engine.start(labour.quick(place.ledger)))
            await asyncio.sleep(0.1)  # the pace of the runs that are started
            return set(await place.statuses(runs)) == {Status.COMPLETED}

        await eventually(all_are_over, within=120)
        claims = [(line["asked"], set(line["answer"])) for line in worker.answers() if line["verb"] == "claim"]
        ids = {run.id for run in runs}
        groups = [claimed for _, claimed in claims if ids & claimed]
        [since] = [asked for asked, claimed in claims if claimed is groups[0]]
        assert not [claimed for asked, claimed in claims if since < asked < since + LEASE and claimed - ids]
        # A worker keeps half of its room for runs that have to pass gates.
        assert len(groups) <= 2
        assert set().union(*groups) == ids
        for other in others:
            await other.result(timeout=60)
