"""Tell a worker to stop at every crash point: it ends by itself, and has given back all that it held without waiting
for its lease."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from perdure import Context, Engine, Pending, RetryAfter, Status, activity, workflow
from perdure.core.model.record import NewMessage
from perdure.core.model.turn import ContinueAsNew, Park, Release, Turn, TurnOutcome
from perdure.host import Host
from perdure.store import open_store
from perdure.testing.crash import Trap
from tests.faults import app
from tests.faults.evidence import judge, snapshot
from tests.faults.family import Family
from tests.faults.homes import SqliteHome
from tests.helpers import eventually

WHOLE = bool(os.environ.get("PERDURE_PROVE"))
AT_ONCE = 4

#: No test waits for this to pass: what others can take was given back. All have it, so that nothing is taken from one
#: that is merely slow.
LEASE = 600.0


#: Passed while the database is opened, before there is a worker that could be told.
BEFORE = [f"{verb}.{point}" for verb in ("status", "migrate") for point in ("enter", "begun", "written", "committed")]


@pytest.mark.timeout(7200 if WHOLE else 300)
async def test_a_worker_told_to_stop_at_any_point_ends_and_leaves_nothing_behind(
    processes: Family, tmp_path: Path
) -> None:
    room = asyncio.Semaphore(AT_ONCE)

    async def stop_at(directory: Path, trap: Trap | None) -> list[str]:
        trapped = None if trap is None else msgspec.to_builtins(trap)
        worker = await processes.fork("work", directory, lease=LEASE, trap=trapped)
        client = await processes.fork("ask", directory, lease=LEASE)
        ending = asyncio.ensure_future(worker.ended())
        await asyncio.wait([ending, asyncio.ensure_future(client.ended())], return_when=asyncio.FIRST_COMPLETED)
        if not ending.done():
            worker.signal(signal.SIGTERM)
        assert await ending == 0, f"told to stop at {trap}:\n{worker.noise()}"
        last = await processes.fork("drive", directory, last=True, lease=LEASE)
        assert await last.ended() == 0, f"told to stop at {trap}:\n{last.noise()}"
        assert await client.ended() == 0, f"told to stop at {trap}:\n{last.noise()}"
        home = SqliteHome(directory)
        wrong = await judge(home, [])
        reclaimed = [run for run, kind in (await snapshot(home, "events")).events if kind == "reclaimed"]
        assert not wrong, f"told to stop at {trap}, in {directory}:\n" + "\n".join(wrong) + worker.noise()
        assert not reclaimed, f"told to stop at {trap}, in {directory}: a sweep had to take away {reclaimed}"
        return worker.passed

    async def case(number: int, trap: Trap) -> None:
        async with room:
            directory = tmp_path / f"{number:05}"
            await stop_at(directory, trap)
            shutil.rmtree(directory)

    passed = Counter(await stop_at(tmp_path / "dry", None))
    for point in BEFORE:
        passed.pop(point, None)
    points = passed if WHOLE else random.sample(sorted(passed), len(passed) // 4)
    async with asyncio.TaskGroup() as group:
        for number, point in enumerate(points):
            often = passed[point]
            for hit in range(1, often + 1) if WHOLE else [random.randint(1, often)]:
                group.create_task(case(1000 * number + hit, Trap(point=point, hit=hit, signal=signal.SIGTERM)))


@activity("stopping.waits.v1")
async def waits_outside() -> str:
    return Pending


@activity("stopping.later.v1")
async def waits_for_its_next_attempt() -> str:
    raise RetryAfter(3600)


@workflow("stopping.again.v1")
async def goes_on_as_new(ctx: Context) -> None:
    ctx.continue_as_new(goes_on_as_new())


@pytest.mark.parametrize(
    "definition", [app.stopped, waits_outside, waits_for_its_next_attempt, goes_on_as_new], ids=lambda one: one.type
)
async def test_a_run_that_is_given_back_while_its_rest_is_refused_is_still_given_back(
    definition: Any, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"
    host = Host()
    store: Any = open_store(url, host)
    commit = store.commit
    stopping: list[asyncio.Future[None]] = []

    async def commit_late(turns: Sequence[Turn], actor: str) -> list[TurnOutcome]:
        if not stopping and isinstance(turns[0].next, Park | ContinueAsNew):
            stopping.append(asyncio.ensure_future(worker.stop(grace=0)))
            await store.send([NewMessage(run_id=turns[0].lease.run_id, name="other", payload="1", key="1")], "test")
            assert worker._worker is not None
            [held] = worker._worker._held.values()
            await eventually(lambda: isinstance(held._forced, Release))
        verdicts: list[TurnOutcome] = await commit(turns, actor)
        return verdicts

    store.commit = commit_late
    async with Engine(url, [definition], system=host, store=store) as engine:
        worker = engine.worker(lease=LEASE)
        await worker.start()
        run = await engine.start(definition(str(tmp_path / "ledger")) if definition is app.stopped else definition())
        await eventually(lambda: stopping and stopping[0].done())
        assert await run.status() is Status.PENDING


async def test_a_worker_declared_dead_while_it_starts_claims_as_one_and_can_be_stopped(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"
    host = Host()
    store: Any = open_store(url, host)
    unblock = store.unblock

    async def unblock_late(*args: Any) -> int:
        inner: Any = worker._worker
        inner.declared_dead()
        await inner._rebirth
        unblocked: int = await unblock(*args)
        return unblocked

    store.unblock = unblock_late
    async with Engine(url, [app.stopped], system=host, store=store) as engine:
        worker = engine.worker(lease=LEASE)
        await worker.start()
        claimers = [task for task in asyncio.all_tasks() if task.get_name() == "perdure claimer"]
        async with asyncio.timeout(20):
            await worker.stop()
    assert len(claimers) == 1
