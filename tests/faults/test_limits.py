"""Limits under attack: what the executions themselves wrote down, while their workers are killed again and again."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from pathlib import Path

import pytest

from perdure import Call, Engine, Status
from tests.faults import siege
from tests.faults.family import Child, Family
from tests.faults.homes import Homes, Look
from tests.helpers import eventually
from tests.invariants import scan_store

WHOLE = bool(os.environ.get("PERDURE_PROVE"))
PROCESSES = 16 if WHOLE else 3
RUNS = 50_000 if WHOLE else 240
#: Seconds between two kills, at the most.
CALM = 4.0 if WHOLE else 1.2
LEASE = 3.0 if WHOLE else 1.0
LONGEST = 6000.0 if WHOLE else 100.0
UNFINISHED = [Status.PENDING, Status.RUNNING, Status.WAITING, Status.BLOCKED]


class Attack:
    """Workers that are killed at random and replaced."""

    def __init__(self, processes: Family, directory: Path) -> None:
        self._processes = processes
        self._directory = directory
        self._workers: list[Child] = []
        #: When, by the clock that all processes share.
        self.killed: dict[int, int] = {}

    async def add(self) -> None:
        self._workers.append(await self._processes.fork("serve", self._directory, life=LONGEST, lease=LEASE))

    async def go_on(self) -> None:
        """For ever."""
        while True:
            await asyncio.sleep(random.random() * CALM)  # kills come at random times
            await self.strike()

    async def strike(self) -> None:
        """One is killed, and another one takes its place."""
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
        ledger = home.directory / "ledger"
        attack = Attack(processes, home.directory)
        async with Engine(home.url, siege.ACTIVITIES) as engine:
            wanted = calls(str(ledger))
            for start in range(0, RUNS, 1000):
                await engine.start_many(wanted[start : start + 1000])
            for _ in range(PROCESSES):
                await attack.add()
            # While there is work, however fast it is done.
            await eventually(lambda: ledger.exists() and ledger.stat().st_size > 0)
            await attack.strike()
            attacking = asyncio.ensure_future(attack.go_on())

            async def is_over() -> bool:
                assert not attacking.done() or attacking.result() is None
                return not (await engine.runs.list(status=UNFINISHED, limit=1)).runs

            try:
                await eventually(is_over, within=LONGEST, saying="the end of all runs")
            finally:
                attacking.cancel()
                await asyncio.wait([attacking])
                await attack.end()
            assert not (await engine.runs.list(status=[Status.FAILED, Status.CANCELLED], limit=1)).runs
        async with home.looking("end") as look:
            assert look is not None
            assert await scan_store(lambda sql: _rows(look, sql)) == []
    judge(siege.read(ledger, attack.killed), attack.killed)


def judge(executions: list[siege.Execution], killed: dict[int, int]) -> None:
    apart = siege.fenced(executions, killed)
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
