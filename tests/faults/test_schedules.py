"""Workers are killed while they fire, two at a time: each slot becomes one run, and none is left out."""

from __future__ import annotations

import os
import random
from collections import Counter
from pathlib import Path

import pytest

from perdure import Engine, Every, Status
from perdure.core.time.schedule import run_id_of
from tests.faults import labour
from tests.faults.evidence import scan_for_wrongs
from tests.faults.family import Family
from tests.faults.homes import Homes
from tests.faults.roles import WORKFLOWS
from tests.helpers import eventually

WHOLE = bool(os.environ.get("PERDURE_PROVE"))
INTERVAL = 200_000
PLACES = ("enter", "begun", "written", "committed")
KILLED = -9


def rounds(homes: Homes) -> list[str]:
    """Where workers die, one round after another."""
    if WHOLE:
        return [*PLACES] * 10
    return list(PLACES) if homes.is_file else random.sample(PLACES, 2)


async def is_behind(engine: Engine, slots: int) -> bool:
    """Whether so many slots have come since the schedule was made."""
    there = await engine.schedules.get("clock")
    return there.last_fire_time >= there.created_at + slots * INTERVAL


@pytest.mark.timeout(1200 if WHOLE else 300)
async def test_a_slot_becomes_one_run_although_its_scheduler_dies(
    processes: Family, homes: Homes, tmp_path: Path
) -> None:
    async with homes.at(tmp_path / "case") as home, Engine(home.url, WORKFLOWS) as engine:
        call = labour.quick(str(home.directory / "ledger"))
        timing = Every(INTERVAL / 1e6)
        first = await engine.schedules.create("clock", call, timing, overlap="allow", misfire="all")
        for place in rounds(homes):
            traps = [{"point": f"fire_schedules.{place}", "hit": random.randint(1, 3)} for _ in range(2)]
            workers = [await processes.fork("work", home.directory, trap=trap) for trap in traps]
            assert [await worker.ended() for worker in workers] == [KILLED, KILLED], workers[0].noise()
        slots = len((await engine.runs.list(limit=1000)).runs)
        await processes.fork("work", home.directory)
        await eventually(lambda: is_behind(engine, slots + 3), saying="so many slots being behind")
        await engine.schedules.pause("clock")
        await eventually(lambda: has_ended(engine), saying="every run having ended")
        await engine.schedules.delete("clock")

        runs = [run.id for run in (await engine.runs.list(limit=1000)).runs]
        known = range(first.next_fire_time, first.next_fire_time + len(runs) * INTERVAL, INTERVAL)
        assert sorted(runs) == sorted(run_id_of("clock", slot) for slot in known)
        fired = Counter(
            event.data for event in await engine.schedules.events("clock") if event.kind == "schedule_fired"
        )
        assert len(fired) == len(runs)
        assert set(fired.values()) == {1}
        assert await scan_for_wrongs(home) == []


async def has_ended(engine: Engine) -> bool:
    return not (await engine.runs.list(status=[Status.PENDING, Status.RUNNING, Status.WAITING], limit=1)).runs
