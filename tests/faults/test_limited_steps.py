"""Kill the worker at every crash point around steps that have to pass gates: none is lost, none is done twice, and
never two at once."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from perdure.testing.crash import Trap
from tests.faults import app, narrow
from tests.faults.family import Family
from tests.faults.homes import Home, Homes, Look
from tests.invariants import scan_store

WHOLE = bool(os.environ.get("PERDURE_PROVE"))
#: Cases when not proving: in a file, and on a server, where each takes longer and passes the same code.
SOME, FEW = 6, 1
#: Pairs of kills, the second one during the recovery.
PAIRS = 100 if WHOLE else 1
AT_ONCE = 4
KILLED = -9
#: Seconds that a process may take, whatever else the machine does.
LIFE = 100.0


class Cases:
    """Kills, a few at a time."""

    def __init__(self, processes: Family, homes: Homes, directory: Path) -> None:
        self._processes = processes
        self._homes = homes
        self._directory = directory
        self._room = asyncio.Semaphore(AT_ONCE)
        self._numbers = itertools.count()
        self.fired: Counter[str] = Counter()

    async def dry(self) -> list[str]:
        """The points that an undisturbed process passes."""
        async with self._homes.at(self._directory / "dry") as home:
            child = await self._processes.fork("squeeze", home.directory, life=LIFE)
            assert await child.ended() == 0, child.noise()
            await self._judge(home, "nothing")
            return child.passed

    async def run(self, *traps: Trap) -> None:
        async with self._room, self._homes.at(self._directory / f"case-{next(self._numbers)}") as home:
            for trap in traps:
                child = await self._processes.fork("squeeze", home.directory, life=LIFE, trap=msgspec.to_builtins(trap))
                code = await child.ended()
                # How often points are passed differs from time to time; then there was nothing left to be killed.
                assert code in (0, KILLED), f"a process with a trap at {trap} ended with {code}:\n{child.noise()}"
                if child.caught is not None:
                    self.fired[child.caught.partition(".")[0]] += 1
            last = await self._processes.fork("squeeze", home.directory, life=LIFE)
            told = " then ".join(str(trap) for trap in traps)
            assert await last.ended() == 0, f"after a crash at {told} no process could finish:\n{last.noise()}"
            await self._judge(home, told)

    async def _judge(self, home: Home, told: str) -> None:
        ledger = home.directory / "ledger"
        assert narrow.most_at_once(ledger) == 1, f"after a crash at {told}, two were inside at once"
        executed = Counter(line["value"] for line in app.read(ledger) if line["did"] == "step")
        async with home.looking("end") as look:
            assert look is not None
            runs = await look("SELECT id, status, output FROM perdure_runs")
            assert {(run["id"], run["status"]) for run in runs} == {("one", "completed"), ("two", "completed")}, told
            values = [value for run in runs for value in json.loads(run["output"])]
            assert len(set(values)) == 8, told
            assert set(values) <= set(executed), told
            assert await look("SELECT * FROM perdure_lines") == [], told
            assert await scan_store(lambda sql: _rows(look, sql)) == [], told


async def _rows(look: Look, sql: str) -> list[tuple[object, ...]]:
    return [tuple(row.values()) for row in await look(sql)]


@pytest.mark.timeout(7200 if WHOLE else 120)
async def test_limited_steps_are_executed_one_by_one_wherever_their_worker_dies(
    processes: Family, homes: Homes, tmp_path: Path
) -> None:
    cases = Cases(processes, homes, tmp_path)
    passed = await cases.dry()
    hits = range(1, len(passed) + 1)
    chosen = hits if WHOLE else sorted(random.sample(hits, SOME if homes.is_file else FEW))
    pairs = PAIRS if homes.is_file or WHOLE else 0
    async with asyncio.TaskGroup() as group:
        for hit in chosen:
            group.create_task(cases.run(Trap(hit=hit)))
        for _ in range(pairs):
            group.create_task(cases.run(Trap(hit=random.choice(hits)), Trap(hit=random.choice(hits))))
    # A run passes more points or fewer as others get in its way. One of a few that it did not get to is made up for by
    # another.
    for _ in range(0 if WHOLE else len(chosen)):
        if cases.fired.total() < 0.7 * len(chosen):
            await cases.run(Trap(hit=random.choice(range(1, len(passed) // 2 + 1))))
    assert cases.fired.total() >= 0.7 * len(chosen), "too few were killed"
    if WHOLE:
        assert {"admit", "claim", "commit", "step"} <= cases.fired.keys()
