"""A storm of kills: the work of a fleet whose workers are killed again and again is done, and no more is done twice
than kills explain."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

import pytest

from perdure import Engine, Status
from perdure.core.model.worker_info import WorkerStatus
from tests.faults import storm
from tests.faults.app import note
from tests.faults.family import Child, Family
from tests.faults.homes import Homes, Look
from tests.helpers import eventually
from tests.invariants import scan_store

WHOLE = bool(os.environ.get("PERDURE_PROVE"))
PROCESSES = 8 if WHOLE else 3
RUNS = 400 if WHOLE else 40
#: Executions between two kills. By work and not by time, so that a slow machine meets no other storm than a fast one.
CALM = 12
LEASE = 1.5
LONGEST = 1500.0 if WHOLE else 150.0
UNFINISHED = [Status.PENDING, Status.RUNNING, Status.WAITING, Status.BLOCKED]


class Storm:
    """Workers that are killed as they get on, and replaced."""

    def __init__(self, processes: Family, directory: Path) -> None:
        self._processes = processes
        self._directory = directory
        self._workers: list[Child] = []
        self.ledger = directory / "ledger"
        self.strikes = 0

    async def add(self) -> None:
        self._workers.append(await self._processes.fork("weather", self._directory, life=LONGEST, lease=LEASE))

    async def strike(self) -> None:
        """One is killed, which the ledger is told first, and another one takes its place."""
        worker = self._workers.pop(random.randrange(len(self._workers)))
        note(str(self.ledger), did="killed", pid=worker.pid)
        self.strikes += 1
        await self._kill(worker)
        await self.add()

    async def end(self) -> None:
        for worker in self._workers:
            await self._kill(worker)

    async def _kill(self, worker: Child) -> None:
        worker.signal(signal.SIGKILL)
        assert await worker.ended() == -signal.SIGKILL, worker.noise()

    def due(self) -> int:
        """How many kills are due by what has been done."""
        lines = self.ledger.read_bytes().count(b"\n") if self.ledger.exists() else 0
        # While there is work left to disturb.
        return min(lines - self.strikes, (RUNS - 1) * storm.EXECUTIONS) // CALM - self.strikes


@pytest.mark.timeout(1800 if WHOLE else 300)
async def test_a_storm_of_kills_costs_what_the_killed_had_in_their_hands(
    processes: Family, homes: Homes, tmp_path: Path
) -> None:
    async with homes.at(tmp_path / "home") as home:
        weather = Storm(processes, home.directory)
        async with Engine(home.url, storm.DEFINITIONS) as engine:
            await engine.start_many([storm.storm(str(weather.ledger)) for _ in range(RUNS)])
            for _ in range(PROCESSES):
                await weather.add()

            async def is_over() -> bool:
                while weather.due() > 0:
                    await weather.strike()
                return not (await engine.runs.list(status=UNFINISHED, limit=1)).runs

            try:
                await eventually(is_over, within=LONGEST, saying="the end of all runs")
                workers = await engine.workers.list()
            finally:
                await weather.end()
            assert not (await engine.runs.list(status=[Status.FAILED, Status.CANCELLED], limit=1)).runs
        async with home.looking("end") as look:
            assert look is not None
            assert await scan_store(lambda sql: _rows(look, sql)) == []
    judge(weather, {worker.pid for worker in workers if worker.status is WorkerStatus.DEAD})


def judge(weather: Storm, declared_dead: set[int]) -> None:
    losses = storm.Losses(weather.ledger)
    assert len(losses.places) == RUNS * storm.EXECUTIONS
    assert weather.strikes >= (RUNS - 1) * storm.EXECUTIONS // CALM
    for places in losses.killed.values():
        # A run has one step in hand; one whose outcome is being written takes no slot any more.
        assert len(places) <= 2 * storm.SLOTS, places
    # A process that lives loses what it has only if it was starved for a lease, and began a new life.
    starved = {process for process, places in losses.living.items() if places}
    assert starved <= declared_dead
    assert len(starved) <= weather.strikes


async def _rows(look: Look, sql: str) -> list[tuple[object, ...]]:
    return [tuple(row.values()) for row in await look(sql)]
