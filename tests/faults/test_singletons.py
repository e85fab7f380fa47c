"""Workers are killed where they let the next one begin: of each singleton one run goes on at a time, and none is left
waiting."""

from __future__ import annotations

import asyncio
import os
import random
from collections import defaultdict
from pathlib import Path

import pytest

from perdure import Engine, Singleton, Status
from tests.faults import labour
from tests.faults.evidence import scan_for_wrongs
from tests.faults.family import Family
from tests.faults.homes import Homes
from tests.faults.roles import WORKFLOWS
from tests.helpers import eventually

WHOLE = bool(os.environ.get("PERDURE_PROVE"))
KEYS = 3
RUNS = 16
KILLED = -9
#: However often a run was killed with its worker, it is not to blame: one that is set aside would hold up all that wait
#: for its end.
BLAMELESS = {"poison_after": 1000}
POINTS = [
    f"{verb}.{place}" for verb in ("start_successors", "commit") for place in ("enter", "begun", "written", "committed")
]


def rounds(homes: Homes) -> list[str]:
    """Where workers die, one round after another."""
    if WHOLE:
        return POINTS * 5
    return random.sample(POINTS, 4 if homes.is_file else 2)


@pytest.mark.timeout(1200 if WHOLE else 300)
async def test_one_run_of_a_singleton_goes_on_at_a_time_although_workers_die(
    processes: Family, homes: Homes, tmp_path: Path
) -> None:
    async with homes.at(tmp_path / "case") as home, Engine(home.url, WORKFLOWS) as engine:
        call = labour.quick(str(home.directory / "ledger"))
        singles = [Singleton(f"key {number % KEYS}", "queue") for number in range(RUNS)]
        await asyncio.gather(*(engine.start(call, id=f"r{n}", singleton=one) for n, one in enumerate(singles)))
        for point in rounds(homes):
            worker = await processes.fork("work", home.directory, trap={"point": point, "hit": 1}, **BLAMELESS)
            more = engine.start(call, singleton=random.choice(singles))
            assert (await asyncio.gather(worker.ended(), more))[0] == KILLED, worker.noise()
        await processes.fork("work", home.directory, **BLAMELESS)
        await processes.fork("work", home.directory, **BLAMELESS)
        await eventually(lambda: have_ended(engine), saying="every run having ended")

        runs = (await engine.runs.list(limit=1000)).runs
        assert {run.status for run in runs} == {Status.COMPLETED}
        assert await overlaps(engine, {run.id: run.options for run in runs}) == []
        assert await scan_for_wrongs(home) == []


async def have_ended(engine: Engine) -> bool:
    return not (await engine.runs.list(status=[Status.PENDING, Status.RUNNING, Status.WAITING], limit=1)).runs


async def overlaps(engine: Engine, options: dict[str, str]) -> list[tuple[str, ...]]:
    """Runs of one singleton of which one began while another went on, by the order of the audit trail."""
    events = (await engine.audit.list(kind=["started", "completed"], limit=1000)).events
    under_way: defaultdict[str, set[str]] = defaultdict(set)
    found = []
    for event in reversed(events):
        others = under_way[options[event.run_id]]
        if event.kind == "completed":
            others.discard(event.run_id)
        else:
            others.add(event.run_id)
        if len(others) > 1:
            found.append(tuple(sorted(others)))
    return found
