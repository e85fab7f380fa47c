"""Many processes share a breaker and a limit, and some are killed: the bounds hold, and all work gets done."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from perdure import Engine, Handle, Status
from perdure.admin import Circuit
from tests.helpers import eventually
from tests.invariants import scan_store
from tests.servers.databases import Databases
from tests.servers.schemas import Schemas
from tests.stage import Stage, set_up
from tests.worker.breaking import NARROW, PROBES, WIDE, WORKFLOWS, act, flow

pytestmark = pytest.mark.every_database

ROOT = Path(__file__).parent.parent.parent
PROVE = bool(os.environ.get("PERDURE_PROVE"))
WORKERS, RUNS, KILLS = (8, 400, 12) if PROVE else (3, 12, 1)


class Fleet:
    """Worker processes, some of which die."""

    def __init__(self, url: str, ledger: Path) -> None:
        self._url = url
        self._ledger = ledger
        self._processes: list[asyncio.subprocess.Process] = []
        #: When each of those that died did.
        self.died: dict[int, int] = {}

    async def start(self, *trap: str) -> None:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.worker.breaking", self._url, str(self._ledger), *trap, cwd=ROOT
        )
        self._processes.append(process)

    async def die_or(self, done: Callable[[], Awaitable[bool]]) -> bool:
        """Wait for the first process to die, or kill it when `done`; returns True if it died by itself."""
        dying = asyncio.ensure_future(self._processes[0].wait())

        async def is_over() -> bool:
            return dying.done() or await done()

        await eventually(is_over, within=60)
        by_itself = dying.done()
        await self.kill_one()
        assert await dying == -signal.SIGKILL
        return by_itself

    async def kill_one(self) -> None:
        process = self._processes.pop(0)
        # It may be gone already.
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        self.died[process.pid] = time.monotonic_ns()

    async def stop(self) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            assert await process.wait() == 0
        self._processes.clear()

    def lines(self, what: str) -> list[tuple[str, int, int]]:
        """Events of the test, by process and time."""
        found = []
        for line in self._ledger.read_text().splitlines():
            where, did, pid, at = line.split()
            if where == what:
                found.append((did, int(pid), int(at)))
        return found

    def is_up(self) -> bool:
        return {process.pid for process in self._processes} <= {pid for _, pid, _ in self.lines("worker")}

    def has_gone_on(self, count: int) -> bool:
        return len(self.lines(WIDE)) > count

    def most_at_once(self, where: str) -> int:
        lines = self.lines(where)
        for pid, died in self.died.items():
            ins = sum(1 for did, whose, _ in lines if whose == pid and did == "in")
            outs = sum(1 for did, whose, _ in lines if whose == pid and did == "out")
            lines += [("out", pid, died)] * (ins - outs)
        changes = sorted((at, -1 if did == "out" else 1) for did, _, at in lines)
        return max(itertools.accumulate(change for _, change in changes))


@pytest.fixture(params=["file", "postgres", "mysql"] if PROVE else ["file"])
async def place(
    request: pytest.FixtureRequest, tmp_path: Path, schemas: Schemas, databases: Databases
) -> AsyncIterator[Stage]:
    async with set_up(request.param, tmp_path, schemas, databases) as stage:
        yield stage


async def test_probes_and_steps_stay_bounded_in_a_stampede_while_workers_die(place: Stage, tmp_path: Path) -> None:
    ledger, broken = tmp_path / "ledger", tmp_path / "broken"
    broken.touch()
    engine = place.engine(*WORKFLOWS)
    fleet = Fleet(place.url, ledger)
    first = await engine.start(act(str(ledger)))
    await fleet.start()
    await eventually(lambda: is_open(engine), within=60)
    # Only the database still knows that it is open.
    await fleet.kill_one()
    assert await is_open(engine)
    for _ in range(WORKERS):
        await fleet.start()
    runs: list[Handle[None]] = [first]
    runs += [await engine.start((act, flow)[number % 2](str(ledger))) for number in range(RUNS)]
    await eventually(fleet.is_up, within=60)
    broken.unlink()
    for _ in range(KILLS):
        seen = len(fleet.lines(WIDE))
        await eventually(partial(fleet.has_gone_on, seen + random.randint(1, 5)), within=60)
        await fleet.kill_one()
        await fleet.start()
    for run in runs:
        await run.result("300s" if PROVE else "60s")
    await eventually(fleet.is_up, within=60)
    await fleet.stop()
    assert fleet.most_at_once(WIDE) <= PROBES
    assert fleet.most_at_once(NARROW) <= 2
    assert place.store is not None
    assert not await scan_store(place.store.query)


async def test_a_worker_that_dies_anywhere_at_the_gates_leaves_nothing_behind(place: Stage, tmp_path: Path) -> None:
    points = [f"admit.{point}" for point in ("enter", "begun", "written", "committed")] + [
        "commit.committed",
        "step.returned",
    ]
    traps = [(point, hit) for point in points for hit in range(1, 8)] if PROVE else [(random.choice(points), 3)]
    ledger = tmp_path / "ledger"
    engine = place.engine(*WORKFLOWS)
    await engine.breakers.close("api")
    fleet, died = Fleet(place.url, ledger), 0
    for point, hit in traps:
        runs = [await engine.start(flow(str(ledger))) for _ in range(3)]
        await fleet.start(point, str(hit))
        # How often a point is passed differs; what is over before it is passed so often was not disturbed.
        died += await fleet.die_or(partial(all_over, runs))
        await fleet.start()
        for run in runs:
            await run.result("60s")
        await eventually(fleet.is_up, within=60)
        await fleet.stop()
        assert fleet.most_at_once(NARROW) <= 2, (point, hit)
        assert place.store is not None
        assert not await scan_store(place.store.query), (point, hit)
        assert await place.rows("SELECT run_id FROM perdure_lines") == [], (point, hit)
    assert died >= len(traps) // 2


async def all_over(runs: Sequence[Handle[None]]) -> bool:
    return all([await run.status() is Status.COMPLETED for run in runs])


async def is_open(engine: Engine) -> bool:
    return [one.circuit is not Circuit.CLOSED for one in await engine.breakers.list()] == [True]
