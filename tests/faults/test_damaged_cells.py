"""One damaged cell after the other, in every column of every table, while a worker goes on.

What the cell belongs to may stop, with an error that is documented. Neighbours finish, background loops live, and
nothing spins.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from perdure import Engine, PerdureError
from perdure.client.workers import EngineWorker
from tests.faults.museum import ALL, Columns, Museum, Vandal, gated, well
from tests.servers.databases import Databases
from tests.servers.schemas import Schemas
from tests.stage import Stage, set_up

PROVE = bool(os.environ.get("PERDURE_PROVE"))
#: Cells that are damaged in one database, and databases, each from a seed of its own.
STRIKES = 40
ROUNDS = 50 if PROVE else 1
FAMILIES = 36
SEED = int(os.environ.get("PERDURE_DAMAGE_SEED", "1"))
#: Statements in a second of a worker that has nothing to do, at the most: a worker that spins makes thousands.
QUIET = 400

pytestmark = pytest.mark.timeout(3600 if PROVE else 300)


def undocumented(records: list[logging.LogRecord]) -> list[str]:
    """Errors in the log that no one foresaw."""
    found: list[str] = []
    for one in records:
        error = one.exc_info[1] if one.exc_info else None
        if one.name.startswith("perdure") and error is not None and not isinstance(error, PerdureError):
            found.append(f"{one.getMessage()}: {error!r}")
    return found


async def look_around(engine: Engine, name: str) -> None:
    """Ask what people ask; whatever the answer is, an error is documented."""
    asked: list[Callable[[], Awaitable[object]]] = [
        engine.runs.list,
        engine.workers.list,
        engine.schedules.list,
        engine.limits.list,
        engine.breakers.list,
        engine.locks.list,
        engine.queues.watermarks.list,
        engine.tokens.list,
        engine.queues.types,
        engine.queues.paused,
        engine.audit.list,
        engine.dead_letters.list,
    ]
    for run_id in (f"{name}-told", f"{name}-parent", f"{name}-kept"):
        asked += [lambda run_id=run_id: engine.runs.why(run_id), lambda run_id=run_id: _history(engine, run_id)]  # type: ignore[misc] # mypy infers no type for the default of a lambda
    for one in asked:
        try:
            await one()
        except PerdureError:
            continue


async def _history(engine: Engine, run_id: str) -> object:
    run = await engine.get(run_id)
    return await run.history(), await run.inbox(), await run.report()


def alive(worker: EngineWorker) -> bool:
    inner = worker._worker
    assert inner is not None
    tasks = [inner._claimer._task, inner.scheduler._task, *inner._sweeper._tasks]
    return all(task is None or not task.done() for task in tasks) and inner._claimer._task is not None


async def statements_of_a_second(stage: Stage) -> int:
    assert stage.store is not None
    seen = 0

    def count(_: str) -> None:
        nonlocal seen
        seen += 1

    await stage.store.trace(count)
    await asyncio.sleep(1.0)  # statements are counted over a time
    await stage.store.trace(None)
    return seen


@pytest.mark.parametrize("seeding", range(ROUNDS))
@pytest.mark.parametrize("kind", ["file", "postgres", "mysql"])
async def test_a_damaged_cell_concerns_what_it_belongs_to(
    kind: str,
    seeding: int,
    tmp_path: Path,
    schemas: Schemas,
    databases: Databases,
    caplog: pytest.LogCaptureFixture,
) -> None:
    seed = SEED * 1000 + seeding
    columns = Columns()
    await columns.learn()
    async with set_up(kind, tmp_path, schemas, databases, fresh=True) as stage:
        engine = stage.engine(*ALL)
        museum = Museum(stage, engine, FAMILIES)
        await museum.fill()
        vandal = Vandal(museum, columns, seed)
        struck: list[str] = []
        told: set[str] = set()
        async with engine.worker(lease=5.0, grace=0.5) as worker:
            for number in range(STRIKES):
                struck.append(await vandal.strike())
                said = f"seed {seed}, after {struck[-1]}"
                for name in sorted(museum.touched - told):
                    told.add(name)
                    for message in ("go", "other"):
                        await _tell(engine, f"{name}-told", message)
                    await look_around(engine, name)
                for run in (await engine.start(well(f"n{number}")), await engine.start(gated(f"n{number}"))):
                    try:
                        assert await run.result("90s") == f"n{number}", said
                    except TimeoutError:
                        pytest.fail(f"a neighbour did not finish: {await run.why()}; {said}; {worker.errors}")
                assert alive(worker), said
                assert not undocumented(caplog.records), (said, undocumented(caplog.records), struck)
            assert await museum.finish() == {}, (seed, struck)
            assert await statements_of_a_second(stage) < QUIET, (seed, struck)
            assert worker.problem == ""
        assert not undocumented(caplog.records), struck


async def _tell(engine: Engine, run_id: str, message: str) -> None:
    try:
        await (await engine.get(run_id)).send(message, "x")
    except PerdureError:
        return
