"""Kill the worker at every crash point around a transaction of the user's, on every database: each row is there exactly
once."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from perdure.testing.crash import Trap
from tests.faults.deeds import deeds
from tests.faults.family import Family
from tests.invariants import scan_store
from tests.servers.databases import Databases
from tests.servers.schemas import Schemas
from tests.stage import Stage
from tests.store.user_connections.tables import prepare, table

WHOLE = bool(os.environ.get("PERDURE_PROVE"))
#: How often each point is the last that a process passes.
KILLS = 100 if WHOLE else 1
AT_ONCE = 4
KILLED = -9
#: Seconds that a process may take, whatever else the machine does.
LIFE = 100.0
POINTS = ("transact.enter", "transact.begun", "transact.written", "transact.committed", "step.returned")

Places = Callable[[], AbstractAsyncContextManager[Stage]]


@pytest.fixture(params=["sqlite", "postgres", "mysql"])
def places(request: pytest.FixtureRequest, tmp_path: Path, schemas: Schemas, databases: Databases) -> Places:
    """Databases, as many as are wanted."""
    numbers = itertools.count()

    @asynccontextmanager
    async def place() -> AsyncIterator[Stage]:
        if request.param == "sqlite":
            stage = Stage(tmp_path / f"{next(numbers)}.db")
            yield stage
            await stage.close()
            return
        async with (schemas if request.param == "postgres" else databases).one() as url:
            stage = Stage(None, url)
            yield stage
            await stage.close()

    return place


class Cases:
    """Kills, a few at a time."""

    def __init__(self, processes: Family, directory: Path, places: Places) -> None:
        self._processes = processes
        self._directory = directory
        self._places = places
        self._room = asyncio.Semaphore(AT_ONCE)
        self.fired: Counter[str] = Counter()

    async def run(self, number: int, trap: Trap) -> None:
        async with self._room, self._places() as stage:
            await prepare(stage, "value VARCHAR(100)")
            directory = self._directory / f"case-{number}"
            directory.mkdir()
            options: dict[str, Any] = {"life": LIFE, "url": stage.url, "table": table(stage)}
            child = await self._processes.fork("transact", directory, trap=msgspec.to_builtins(trap), **options)
            code = await child.ended()
            assert code == KILLED, f"a process with a trap at {trap} ended with {code}:\n{child.noise()}"
            assert child.caught is not None
            self.fired[child.caught] += 1
            last = await self._processes.fork("transact", directory, **options)
            assert await last.ended() == 0, f"after a crash at {trap} no process could finish:\n{last.noise()}"
            await self._judge(stage, trap)

    async def _judge(self, stage: Stage, trap: Trap) -> None:
        engine = stage.engine(deeds)
        values = await (await engine.get("r", deeds)).result()
        rows = [row[0] for row in await stage.rows(f"SELECT value FROM {table(stage)}")]
        assert sorted(rows) == sorted(values), f"after a crash at {trap}: recorded {values}, written {rows}"
        assert stage.store is not None
        assert await scan_store(stage.store.query) == []


@pytest.mark.timeout(7200 if WHOLE else 120)
async def test_a_row_is_there_exactly_once_wherever_the_worker_dies(
    processes: Family, tmp_path: Path, places: Places
) -> None:
    cases = Cases(processes, tmp_path, places)
    traps = [Trap(point=point, hit=random.randint(1, 3)) for point in POINTS for _ in range(KILLS)]
    async with asyncio.TaskGroup() as group:
        for number, trap in enumerate(traps):
            group.create_task(cases.run(number, trap))
    assert cases.fired == dict.fromkeys(POINTS, KILLS)
