"""Worker processes whose clocks differ, and which SIGKILL ends again and again."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from pathlib import Path

from perdure import Engine
from perdure.admin import RecordKind
from tests.faults import app, labour
from tests.faults.evidence import scan_for_wrongs
from tests.faults.family import Child, Family
from tests.faults.homes import Homes
from tests.faults.roles import WORKFLOWS
from tests.helpers import eventually

#: Seconds by which the clocks of the workers are wrong.
SKEWS = (-30.0, 0.0, 30.0)
RUNS = 6
STEPS = 4
KILLS = 6
LEASE = 2.0


async def test_runs_complete_and_record_each_step_once_while_clocks_differ_and_workers_are_killed(
    processes: Family, homes: Homes, tmp_path: Path
) -> None:
    async with homes.at(tmp_path / "case") as home, Engine(home.url, WORKFLOWS) as engine:
        ledger = str(home.directory / "ledger")

        async def begin(skew: float) -> Child:
            return await processes.fork("work", home.directory, lease=LEASE, skew=skew, poison_after=1000)

        def executed() -> int:
            return sum(line["did"] == "step" for line in app.read(Path(ledger)))

        async def until_executed(steps: int) -> None:
            await eventually(lambda: executed() >= steps, saying=f"{steps} steps")

        runs = [await engine.start(labour.several(ledger, STEPS), id=f"run {number}") for number in range(RUNS)]
        workers = [await begin(skew) for skew in SKEWS]
        for kill in range(KILLS):
            await until_executed(kill + 1)
            place = kill % len(SKEWS)
            workers[place].signal(signal.SIGKILL)
            assert await workers[place].ended() == -signal.SIGKILL
            workers[place] = await begin(SKEWS[place])
            if kill < RUNS:
                await runs[kill].send("go", "go", key="go")
        results = await asyncio.gather(*(run.result("90s") for run in runs))
        assert [len(result) for result in results] == [STEPS + 3] * RUNS
        for run, result in zip(runs, results, strict=True):
            steps = [record for record in await run.history() if record.kind is RecordKind.STEP]
            assert len(steps) == STEPS + 1
            assert max(Counter(record.location for record in steps).values()) == 1
            assert len(set(result)) == len(result)
        for worker in workers:
            worker.signal(signal.SIGTERM)
            await worker.ended()
        assert not await scan_for_wrongs(home)
