"""Many who wait: they hold up nobody whose turn it is, and cost nothing while they wait."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from perdure import Call, Engine, Fair, Limit, activity
from tests.engine.stage import Stage, set_up
from tests.helpers import eventually
from tests.servers.databases import Databases
from tests.servers.schemas import Schemas

WHOLE = bool(os.environ.get("PERDURE_PROVE"))
TENANTS = 1000 if WHOLE else 100
#: Runs of each, and of the one that has many.
EACH, MANY = (3, 100_000) if WHOLE else (3, 3000)
BACKLOG = 100_000 if WHOLE else 1000
#: For how long a fleet is watched, in seconds.
WATCHED = 10.0 if WHOLE else 2.5

pytestmark = pytest.mark.timeout(7200 if WHOLE else 120)


class Statements:
    """Counts what the database is asked, by how it begins."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()

    def __call__(self, statement: str) -> None:
        if "data_version" not in statement:
            self.seen[" ".join(statement.split())[:90]] += 1

    def of(self, part: str) -> int:
        return sum(count for statement, count in self.seen.items() if part in statement)


#: What every admission asks, once.
ADMISSION = "FROM perdure_workers WHERE id ="


@pytest.fixture(params=["file", "postgres", "mysql"])
async def stage(
    request: pytest.FixtureRequest, tmp_path: Path, schemas: Schemas, databases: Databases
) -> AsyncIterator[Stage]:
    async with set_up(request.param, tmp_path, schemas, databases) as stage:
        yield stage


async def _start(engine: Engine, call: Call[None], count: int) -> None:
    for start in range(0, count, 1000):
        await engine.start_many([call] * min(1000, count - start))


async def waits(stage: Stage, many: int) -> list[tuple[int, float]]:
    """After how many executions of anybody's, and how many seconds, each run of the small ones was executed."""
    order: list[tuple[str, float]] = []

    @activity("backlogs.turns.v1", limit=Limit("backlogs", concurrency=20), fair=Fair(lambda tenant: tenant))
    async def turn(tenant: str) -> None:
        order.append((tenant, time.monotonic()))

    def left() -> int:
        return TENANTS * EACH - sum(tenant != "big" for tenant, _ in order)

    engine = stage.engine(turn)
    await _start(engine, turn("big"), many)
    await engine.start_many([turn(f"tenant-{number}") for _ in range(EACH) for number in range(TENANTS)])
    begun = time.monotonic()
    async with engine.worker():
        await eventually(lambda: not left(), within=3000 if WHOLE else 60)
    await engine.prune(0)
    return [(place, at - begun) for place, (tenant, at) in enumerate(order) if tenant != "big"]


async def test_one_with_a_long_backlog_does_not_hold_up_the_others(stage: Stage) -> None:
    alone = await waits(stage, 0)
    assert len(alone) == TENANTS * EACH
    beside = await waits(stage, MANY)
    p99 = int(len(alone) * 0.99)
    # By what was done before them, which no busy machine makes longer; and by the clock where there is time to measure.
    assert sorted(beside)[p99][0] <= 3 * sorted(alone)[p99][0]
    if WHOLE:
        assert sorted(at for _, at in beside)[p99] <= 3 * sorted(at for _, at in alone)[p99]


async def test_a_backlog_that_may_not_pass_costs_an_idle_fleet_nothing(stage: Stage) -> None:
    @activity("backlogs.rare.v1", limit=Limit(rate="1/h"))
    async def rare() -> None: ...

    engine = stage.engine(rare)
    async with engine.worker(lease="1h"):
        assert stage.store is not None
        await (await engine.start(rare())).result("20s")
        idle = await _counted(stage)
        await _start(engine, rare(), BACKLOG)

        async def stands() -> bool:
            return (await engine.limits.list())[0].waiting == BACKLOG

        await eventually(stands, within=600)
        parked = await _counted(stage)
    # A poll more or less at the edges of the time that is watched.
    assert parked.seen.total() <= 2 * idle.seen.total() + 10, (idle.seen, parked.seen)
    assert parked.of(ADMISSION) <= 1


async def _counted(stage: Stage) -> Statements:
    """What is asked of the database in some time, once everything is quiet."""
    assert stage.store is not None
    statements = Statements()
    await stage.store.trace(statements)
    # The time itself is what is measured.
    await asyncio.sleep(WATCHED)  # statements are counted over a time
    await stage.store.trace(None)
    return statements


async def test_whoever_looks_at_a_gate_lets_somebody_pass(stage: Stage) -> None:
    done = 0

    @activity("backlogs.paced.v1", limit=Limit(rate="50/s", burst=1))
    async def paced() -> None:
        nonlocal done
        done += 1

    statements = Statements()
    engine = stage.engine(paced)
    await _start(engine, paced(), BACKLOG)
    async with engine.worker(lease="1h"):

        async def stands() -> bool:
            return sum(gate.waiting for gate in await engine.limits.list()) >= BACKLOG - done - 20

        await eventually(stands, within=600)
        assert stage.store is not None
        before = done
        await stage.store.trace(statements)
        await eventually(lambda: done >= before + 60)
        await stage.store.trace(None)
        passed = done - before
    assert statements.of(ADMISSION) <= 2 * passed + 2, statements.seen
