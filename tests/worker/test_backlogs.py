"""Long waitlists: they do not delay runs that are next in line, and cost nothing while they wait."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from perdure import Breaker, Call, Engine, Fair, Limit, Retry, activity, activity_info
from perdure.store import SqlStore
from perdure.workflow.discover import Definable
from tests.helpers import eventually
from tests.servers.databases import Databases
from tests.servers.schemas import Schemas
from tests.stage import Stage, set_up
from tests.worker.parkings import watching

WHOLE = bool(os.environ.get("PERDURE_PROVE"))
TENANTS = 1000 if WHOLE else 100
#: Runs of each, and of the one that has many.
EACH, MANY = (3, 100_000) if WHOLE else (3, 2000)
BACKLOG = 100_000 if WHOLE else 600
WORKERS = 4
#: So many are let pass in a second, and so many of them are watched.
PACE, SOME = 40, 20
#: For how long a fleet is watched, in seconds.
WATCHED = 20.0 if WHOLE else 2.0
#: Seconds in which a worker that was refused ends what it had begun.
MOMENT = 0.2
#: Lease of the observed workers. With a shorter one, a heartbeat may or may not fall into the measured time.
LEASE = "15s" if WHOLE else "1h"

pytestmark = pytest.mark.timeout(7200 if WHOLE else 600)


_SCHEMA = re.compile(r'"\w+"\.')


class Statements:
    """Counts what the database is asked, by how it begins."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()

    def __call__(self, statement: str) -> None:
        if "data_version" not in statement:
            # Whatever schema it is in.
            self.seen[" ".join(_SCHEMA.sub("", statement).split())[:90]] += 1

    def of(self, part: str) -> int:
        return sum(count for statement, count in self.seen.items() if part in statement)


#: Queries that every admission makes once.
ADMISSION = "FROM perdure_workers WHERE id ="


@pytest.fixture(params=["file", "postgres", "mysql"])
async def stage(
    request: pytest.FixtureRequest, tmp_path: Path, schemas: Schemas, databases: Databases
) -> AsyncIterator[Stage]:
    # To empty a place of so many runs takes longer than to make another.
    async with set_up(request.param, tmp_path, schemas, databases, fresh=WHOLE) as stage:
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
        await eventually(lambda: not left(), within=3000 if WHOLE else 300)
    await engine.runs.prune(0)
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


class Fleet:
    """Workers, each with connections of its own, and what all of them ask of the database."""

    def __init__(self, stage: Stage, *definitions: Definable) -> None:
        self._stage = stage
        self._statements = Statements()
        self._workers: list[tuple[Engine, SqlStore]] = []
        for _ in range(WORKERS):
            engine = stage.engine(*definitions)
            assert stage.store is not None
            self._workers.append((engine, stage.store))

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for engine, store in self._workers:
                await engine.open()
                # Before anybody uses it: a connection that is in use is not listened to.
                await store.trace(self._statements)
                await stack.enter_async_context(engine.worker(lease=LEASE))
            yield

    @asynccontextmanager
    async def counted(self) -> AsyncIterator[Statements]:
        """Count the queries made meanwhile."""
        before, during = self._statements.seen.copy(), Statements()
        yield during
        during.seen = self._statements.seen - before

    async def stand_still(self) -> Statements:
        """Count the queries of some time, after the last worker has finished its work."""

        async def no_request_asks_for_admission() -> bool:
            return not (await self._asked_within(MOMENT)).of(ADMISSION)

        await eventually(no_request_asks_for_admission)
        return await self._asked_within(WATCHED)

    async def _asked_within(self, seconds: float) -> Statements:
        async with self.counted() as statements:
            await asyncio.sleep(seconds)  # statements are counted over a time
        return statements

    async def all_stand(self, gate: str, at_least: int = 1) -> None:
        """Wait until the backlog stands in line there."""

        async def stand() -> bool:
            # Cheap to ask while there is much to do.
            if await self._stage.rows("SELECT 1 FROM perdure_runs WHERE status = 'pending' LIMIT 1"):
                return False
            [(standing,)] = await self._stage.rows("SELECT COUNT(*) FROM perdure_lines WHERE gate = ?", gate)
            return int(standing) >= at_least

        await eventually(stand, within=1800, saying=f"everybody standing in line at {gate}")


async def test_backlogs_that_may_not_pass_cost_an_idle_fleet_nothing(stage: Stage) -> None:
    @activity("backlogs.rare.v1", limit=Limit(rate="1/h"))
    async def rare() -> None: ...

    @activity(
        "backlogs.down.v1", breaker=Breaker("down", failures=1, reset="1h"), retry=Retry.fixed("1ms", attempts=None)
    )
    async def down() -> None:
        raise ConnectionError("it is down")

    fleet = Fleet(stage, rare, down)
    async with fleet.at_work():
        producer = stage.engine(rare, down)
        await (await producer.start(rare())).result("60s")
        # A busy machine makes a fleet poll less: the greater of two counts, and the least of five.
        idle = max([await fleet.stand_still() for _ in range(2)], key=lambda one: one.seen.total())
        await _start(producer, rare(), BACKLOG)
        await _start(producer, down(), BACKLOG)
        await fleet.all_stand("type:backlogs.rare.v1", BACKLOG)
        await fleet.all_stand("breaker:down", BACKLOG)
        # A poll more or less at the edges of the time that is watched.
        parked = await fleet.stand_still()
        for _ in range(4):
            if parked.seen.total() > 2 * idle.seen.total() + WORKERS or parked.of(ADMISSION) > 1:
                parked = await fleet.stand_still()
    assert parked.seen.total() <= 2 * idle.seen.total() + WORKERS, (idle.seen, parked.seen)
    assert parked.of(ADMISSION) <= 1


async def test_backlogs_that_are_let_go_wake_no_worker_in_vain(stage: Stage) -> None:
    attempts: Counter[str] = Counter()
    done: Counter[str] = Counter()
    is_up = False

    @activity("backlogs.paced.v1", limit=Limit(rate=f"{PACE}/s", burst=1))
    async def paced() -> None:
        done["paced"] += 1
        attempts[activity_info().run_id] += 1

    often = Retry.fixed("1ms", attempts=None)

    @activity("backlogs.back.v1", breaker=Breaker("back", failures=1, reset="200ms"), retry=often)
    async def back() -> None:
        attempts[activity_info().run_id] += 1
        done["back" if is_up else "tried"] += 1
        if not is_up:
            raise ConnectionError("it is down")

    fleet = Fleet(stage, paced, back)
    producer = stage.engine(paced, back)
    await producer.open()
    async with watching(stage) as parkings, fleet.at_work():
        async with fleet.counted() as without:
            for _ in range(SOME):
                await producer.start(paced())
                await asyncio.sleep(1 / PACE)  # as many in a second as are let pass
            await eventually(lambda: done["paced"] == SOME)
        await _start(producer, paced(), BACKLOG)
        await fleet.all_stand("type:backlogs.paced.v1")
        async with fleet.counted() as beside:
            passed = done["paced"]
            await eventually(lambda: done["paced"] >= passed + SOME)
            passed = done["paced"] - passed
        await producer.limits.set("type:backlogs.paced.v1", rate="100000/s")
        await eventually(lambda: done["paced"] == SOME + BACKLOG, within=3000)
        await _start(producer, back(), BACKLOG)
        await fleet.all_stand("breaker:back")
        tried = done["tried"]
        await eventually(lambda: done["tried"] >= tried + 3)
        is_up = True
        await eventually(lambda: done["back"] == BACKLOG, within=3000)
        parked = await parkings.by_run()
    assert beside.seen.total() * SOME <= 2 * without.seen.total() * passed, (without.seen, beside.seen)
    assert beside.of(ADMISSION) <= 2 * passed + 2, beside.seen
    assert len(parked) >= 1.9 * BACKLOG - WORKERS * 300, "most of them were never put into a line"
    # A run that was tried was put into the waitlist at most once; any other had woken only for that.
    in_vain = sum(max(0, often - attempts[run]) for run, often in parked.items())
    assert in_vain <= len(parked) / 100
