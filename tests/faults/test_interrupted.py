"""Workers that SIGKILL ends in the middle of a step or an activity: the next attempt knows that it is the next."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from perdure import Call, Engine
from tests.faults import app, labour
from tests.faults.evidence import scan_for_wrongs
from tests.faults.family import Family
from tests.faults.homes import Homes
from tests.faults.roles import WORKFLOWS
from tests.helpers import eventually

LEASE = 2.0
KILLS = 2
#: Of the test in which many kills come at any moment.
SHORT_LEASE = 0.6
MANY_KILLS = 100 if os.environ.get("PERDURE_PROVE") else 8
CHARGES = 30 if os.environ.get("PERDURE_PROVE") else 12


@pytest.mark.parametrize("kind", ["step", "activity"])
async def test_attempts_that_a_kill_interrupted_are_counted_by_steps_and_activities_alike(
    processes: Family, homes: Homes, tmp_path: Path, kind: str
) -> None:
    async with homes.at(tmp_path / "case") as home, Engine(home.url, WORKFLOWS) as engine:
        ledger = str(home.directory / "ledger")
        call: Call[Any] = labour.counting(ledger) if kind == "step" else labour.counted(ledger)

        def tried() -> list[tuple[int, int]]:
            return [(line["attempt"], line["pid"]) for line in app.read(Path(ledger)) if line["did"] == "step"]

        async def until_tried(times: int) -> None:
            await eventually(lambda: len(tried()) >= times, within=60, saying=f"{times} attempts")

        run = await engine.start(call)
        killed: list[int] = []
        for _ in range(KILLS):
            worker = await processes.fork("work", home.directory, lease=LEASE)
            await until_tried(len(killed) + 1)
            worker.signal(signal.SIGKILL)
            assert await worker.ended() == -signal.SIGKILL
            killed.append(worker.pid)
        # No test waits for this lease: what succeeds is not taken from a worker that is merely slow.
        last = await processes.fork("work", home.directory, lease=60.0)
        await until_tried(KILLS + 1)
        labour.gate(ledger).touch()
        assert await run.result("60s") == KILLS + 1
        last.signal(signal.SIGTERM)
        await last.ended()
        assert tried() == list(enumerate([*killed, last.pid], 1))
        assert [one.reason for one in (await run.report()).interruptions] == ["lost"] * KILLS
        assert not await scan_for_wrongs(home)


async def test_a_step_that_must_not_run_twice_does_not_however_often_its_worker_is_killed(
    processes: Family, homes: Homes, tmp_path: Path
) -> None:
    async with homes.at(tmp_path / "case") as home, Engine(home.url, WORKFLOWS) as engine:
        ledger = home.directory / "ledger"

        def made() -> list[tuple[str, str]]:
            return [(line["run"], line["location"]) for line in app.read(ledger) if line["did"] == "step"]

        async def until_more(than: int) -> None:
            await eventually(lambda: len(made()) > than, within=120, saying="another execution")

        runs = [await engine.start(labour.charging(str(ledger), CHARGES)) for _ in range(3)]
        rng = random.Random(7)
        for _ in range(MANY_KILLS):
            before = len(made())
            worker = await processes.fork("work", home.directory, lease=SHORT_LEASE)
            await until_more(before)
            await asyncio.sleep(rng.random() * 0.1)
            worker.signal(signal.SIGKILL)
            assert await worker.ended() == -signal.SIGKILL
        last = await processes.fork("work", home.directory, lease=SHORT_LEASE)
        results = [await run.result("120s") for run in runs]
        last.signal(signal.SIGTERM)
        await last.ended()
        executed = Counter(made())
        assert max(executed.values()) == 1
        values = {line["value"] for line in app.read(ledger) if line["did"] == "step"}
        for run, ended in zip(runs, results, strict=True):
            assert len(ended) == CHARGES
            for number, result in enumerate(ended):
                # What is not known to have happened may have happened; what is known did.
                assert result == "interrupted" or result in values
                assert result == "interrupted" or executed[run.id, f"charge-{number}"] == 1
        assert any("interrupted" in ended for ended in results)
        assert not await scan_for_wrongs(home)
