"""Limits under attack: what the executions themselves wrote down, while their workers are killed again and again."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from perdure import Call, Engine, Status
from perdure.core.model.worker_info import WorkerInfo, WorkerStatus
from tests.faults import siege
from tests.faults.family import Child, Family
from tests.faults.homes import Homes, Look
from tests.helpers import eventually
from tests.invariants import scan_store

WHOLE = bool(os.environ.get("PERDURE_PROVE"))
PROCESSES = 16 if WHOLE else 3
RUNS = 50_000 if WHOLE else 240
#: Executions between two kills. By work and not by time: where processes take long to start, kills that come by the
#: clock leave no time for work.
CALM = 500 if WHOLE else 30
LEASE = 3.0 if WHOLE else 1.0
LONGEST = 6000.0 if WHOLE else 100.0
UNFINISHED = [Status.PENDING, Status.RUNNING, Status.WAITING, Status.BLOCKED]


class Attack:
    """Workers that are killed at random and replaced."""

    def __init__(self, processes: Family, directory: Path) -> None:
        self._processes = processes
        self._directory = directory
        self._workers: list[Child] = []
        self.ledger = directory / "ledger"
        self._read = self._begun = 0
        self._strikes = 0
        #: When, by the clock that all processes share.
        self.killed: dict[int, int] = {}

    async def add(self) -> None:
        self._workers.append(await self._processes.fork("serve", self._directory, life=LONGEST, lease=LEASE))

    def is_due(self) -> bool:
        """Whether enough was executed since the last kill, the first of which comes at once."""
        if not self.ledger.exists():
            return False
        with self.ledger.open("rb") as file:
            file.seek(self._read)
            lines = file.read()
        self._read += len(lines)
        self._begun += lines.count(b'"begin"')
        # While there is work left to disturb.
        return self._strikes <= min(self._begun - 1, RUNS - CALM) // CALM

    async def strike(self) -> None:
        """One is killed, and another one takes its place."""
        self._strikes += 1
        await self.kill(self._workers.pop(random.randrange(len(self._workers))))
        await self.add()

    async def kill(self, worker: Child) -> None:
        self.killed[worker.pid] = time.monotonic_ns()
        worker.signal(signal.SIGKILL)
        assert await worker.ended() == -signal.SIGKILL, worker.noise()

    async def end(self) -> None:
        for worker in self._workers:
            await self.kill(worker)


def calls(ledger: str) -> list[Call[None]]:
    keys = [f"key-{number}" for number in range(siege.KEYS)]
    return [
        [siege.counted(ledger), siege.keyed(ledger, random.choice(keys)), siege.paced(ledger)][number % 3]
        for number in range(RUNS)
    ]


@pytest.mark.timeout(7200 if WHOLE else 200)
async def test_limits_hold_while_workers_are_killed(processes: Family, homes: Homes, tmp_path: Path) -> None:
    async with homes.at(tmp_path / "home") as home:
        attack = Attack(processes, home.directory)
        async with Engine(home.url, siege.ACTIVITIES) as engine:
            wanted = calls(str(attack.ledger))
            for start in range(0, RUNS, 1000):
                await engine.start_many(wanted[start : start + 1000])
            for _ in range(PROCESSES):
                await attack.add()

            async def is_over() -> bool:
                while attack.is_due():
                    await attack.strike()
                return not (await engine.runs.list(status=UNFINISHED, limit=1)).runs

            try:
                await eventually(is_over, within=LONGEST, saying="the end of all runs")
                workers = await engine.workers.list()
            finally:
                await attack.end()
            assert not (await engine.runs.list(status=[Status.FAILED, Status.CANCELLED], limit=1)).runs
        async with home.looking("end") as look:
            assert look is not None
            assert await scan_store(lambda sql: _rows(look, sql)) == []
    dead = [worker for worker in workers if worker.status is WorkerStatus.DEAD]
    judge(siege.read(attack.ledger, attack.killed), attack.killed, dead)


def judge(executions: list[siege.Execution], killed: dict[int, int], dead: list[WorkerInfo]) -> None:
    pairs = siege.fenced(executions, killed)
    for one, after in pairs:
        # A process that lives loses what it has only after a lease without a heartbeat. A healthy one has three in that
        # time; half a lease is more than the clocks of two processes differ.
        assert any(after.granted > worker.heartbeat_at + LEASE / 2 * 1e6 for worker in dead if worker.pid == one.pid), (
            one
        )
    apart = {id(one) for one, _ in pairs}
    valid = [one for one in executions if id(one) not in apart]
    assert len({one.run for one in valid}) == RUNS
    assert len(killed) > PROCESSES, "no worker was killed while there was work"
    assert all(one.ended for one in valid), "an execution has no end, and was not killed"
    counted = [one for one in valid if one.kind in ("counted", "keyed")]
    assert siege.most_at_once(counted) <= siege.AT_ONCE
    assert siege.most_by_key([one for one in valid if one.kind == "keyed"]) == 1
    # Every grant counts, also those of workers that hold no lease any more.
    paced = [one for one in executions if one.kind == "paced"]
    assert siege.excess([one.granted for one in paced]) <= 0
    delays = [one.begun_at - one.granted for one in paced]
    assert siege.excess([one.begun_at for one in paced]) <= max(delays) - min(delays)


async def _rows(look: Look, sql: str) -> list[tuple[object, ...]]:
    return [tuple(row.values()) for row in await look(sql)]
