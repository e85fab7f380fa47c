"""A database that an older version wrote is read and worked on by today's version.

`older/write.py` made the rows with the code of a commit: runs in every status, in flight when the process died, and
rows of every feature. The steps in `older/flows.py` tell the version that executed them.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from perdure import Engine, Locked, RunCancelled, RunFailed, Status, fire_time_of
from perdure.core.model.record import RecordKind
from perdure.store import SqlStore, migrations
from tests.helpers import eventually
from tests.invariants import Known, scan_store
from tests.store.migrations.conftest import Place
from tests.store.migrations.older import dump, flows

OLDER = Path(__file__).parent / "older"
#: Commits whose code wrote the rows: the last one before damaged data was handled, and the last one before modules
#: were renamed.
COMMITS = ("6fe67cf", "2fe560b")

#: Results of the runs that today finishes. "older" and "today" are the versions that executed the steps.
RESULTS: dict[str, Any] = {
    "message": [3, "older", "older", "older", "on", "today"],
    "timer": ["older", "today"],
    "long-timer": ["older", "today"],
    "parent": ["older", "older once", [7, "older", "older", "older", "on", "today"]],
    "parent-child": [7, "older", "older", "older", "on", "today"],
    "step-retry": ["older", "today"],
    "second-attempt": ["older", "older", "on", "today"],
    "loop": ["older"] * 5 + ["today"] * 4,
    "branches": {"map": ["older"] * 3, "quick": "older", "slow": "older on today", "race": ["soon", "today"]},
    "renewed": [3, "older", "on", "today"],
    "topic": ["older", "extra"],
    "question": ["first", "second"],
    "changed": ["older", "on", "today"],
    "machine": [7, "older machine", "first", "second", "today last"],
    "single-1": [1, "older", "on"],
    "single-2": [2, "today", "on"],
    "breaker": ["older", "today"],
    "paused": [8, "older", "older", "older", "unread", "today"],
    "interrupted": ["older", "today", "today"],
    "held-1": ["today", 1],
    "held-2": ["today", 2],
    "held-3": ["today", 3],
    "limited-1": "today",
    "limited-2": "today",
    "failed": ["older", "today"],
    "reopened": ["older", "today"],
    "forked": ["older", "today"],
    "poison": ["older", "today"],
    "undecodable": [3, "today"],
    "debounced": "today",
    "of-paused-type": "today",
    "pending-elsewhere": [10, "today", "today", "today", "on", "today"],
    "completed": [4, "older", "older", "older", "done", "older"],
}
#: Runs that wait for the message "on".
TOLD = ("message", "parent-child", "second-attempt", "loop", "branches", "renewed", "single-1", "single-2")


@pytest.fixture(params=COMMITS)
async def older(request: pytest.FixtureRequest, place: Place, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A database as the older version left it."""
    rows = dump.read(OLDER / f"{request.param}-{place.kind}.json.gz")
    applied = {row["version"] for row in dump.by_name(rows, "perdure_migrations")}
    known = migrations.known
    with monkeypatch.context() as patch:
        patch.setattr(migrations, "known", lambda dialect: [one for one in known(dialect) if one.version in applied])
        async with place.store():
            pass
    await asyncio.to_thread(dump.load, place.url, rows)
    flows.executed.clear()
    return place


async def test_a_database_of_an_older_version_is_migrated_and_read(older: Place) -> None:
    async with Engine(older.url, flows.FLOWS) as engine:
        runs = {run.id: run for run in (await engine.runs.list(limit=500)).runs}
        there = Counter((run.status.value, run.reason and run.reason.value) for run in runs.values())
        waiting = ("timer", "message", "child", "retry", "paused", "limit", "breaker")
        blocked = ("diverged", "undecodable", "poison")
        assert there.keys() == {
            *[("waiting", reason) for reason in waiting],
            *[("blocked", reason) for reason in blocked],
            *[(status, None) for status in ("pending", "running", "completed", "failed", "cancelled")],
        }
        for run_id in runs:
            run = await engine.get(run_id)
            history = await run.history()
            report = await run.report()
            assert {step.location for step in report.steps} <= {record.location for record in history}
            assert [event.id for event in await run.events()]
            assert await run.why()
        letters = (await engine.dead_letters.list()).letters
        assert {letter.run_id for letter in letters} == {"failed", "forked", "reopened", "poison", "undecodable"}
        assert {letter.run_id: letter.requeued for letter in letters}["reopened"] == 1
        assert [lock.owner for lock in await engine.locks.list()] == ["older"]
        assert [mark.high for mark in await engine.queues.watermarks.list()] == [500]
        assert {one.id for one in await engine.schedules.list()} == {"yearly", "once"}
        assert [pause.name for pause in await engine.queues.paused()] == ["older.tick.v1"]
        assert {one.name for one in await engine.limits.list()} >= {"older-one", "older-step"}
        assert [one.name for one in await engine.breakers.list()] == ["older-fragile"]
        message = await engine.get("message")
        assert await message.state("state") == ["older"] * 3
        assert [item.value async for item in message.stream("items", follow=False)] == ["first"]
        assert len(await (await engine.get("paused")).inbox()) == 2
        assert await (await engine.get("question")).ask("how", "first", key="q-1") == "older: first"


async def test_today_finishes_what_an_older_version_began(older: Place) -> None:
    async with older.store() as store:
        before = await _recorded(store)
        async with (
            Engine(older.url, flows.FLOWS, audit="full") as engine,
            engine.worker(lease="5s", queues=["default", "elsewhere"]),
        ):
            await _go_on(engine)
            results = {
                run_id: await (await engine.get(run_id)).result("120s") for run_id in ("activity-retry", *RESULTS)
            }
            # The earlier of the versions could lose the details of the last heartbeat of an attempt.
            beats = await store.query(
                "SELECT payload FROM perdure_outputs WHERE run_id = 'activity-retry' AND kind = 'beat'"
            )
            assert results.pop("activity-retry") == ["today", 1, "half" if beats else None]
            assert results == RESULTS
            await _fail(engine, "saga", ["today undid flight", "today undid room"])
            await _fail(engine, "undoing", ["older undid flight", "today undid room"])
            await _others(engine)
        repeated = [one for one, times in Counter(flows.executed).items() if times > 1]
        assert repeated == []
        assert before & set(flows.executed) == set()
        known = Known(starts=frozenset(RESULTS), settled=frozenset())
        assert await scan_store(store.query, known) == []


async def _recorded(store: SqlStore) -> set[tuple[str, str]]:
    """Steps and activities with a result; a failed step may be executed again by a retry of the run."""
    steps = await store.query("SELECT run_id, location FROM perdure_history WHERE kind = 'step' AND failed = 0")
    leaves = await store.query("SELECT id, type FROM perdure_runs WHERE type = 'older.leaf.v1' AND finished_at > 0")
    assert len(steps) > 40
    assert len(leaves) == 2
    return {(run_id, location) for run_id, location in [*steps, *leaves]}


async def _go_on(engine: Engine) -> None:
    """Give every run the message, order or repair that it waits for."""
    for run_id in (*TOLD, "pending-elsewhere"):
        await (await engine.get(run_id)).send(flows.go, "on")
    await (await engine.get("saga")).send(flows.go, "fail")
    await (await engine.get("machine")).send(flows.go, "second")
    for run_id in ("step-retry", "undoing", "activity-retry", "poison", "failed", "reopened", "forked"):
        await engine.runs.retry(run_id)
    # A worker that starts tries diverged and undecodable runs again. The first follows the code, the second is blocked
    # once more.
    undecodable = await engine.get("undecodable")

    async def blocked_again() -> bool:
        run = await undecodable.info()
        return run.status == "blocked" and [event.kind for event in await undecodable.events()].count("blocked") == 3

    await eventually(blocked_again, saying="the undecodable run being blocked by today's worker")
    await undecodable.retry(input={"number": 3})
    for run_id in ("long-timer", "debounced"):
        await engine.runs.wake(run_id)
    assert await engine.runs.broadcast("news", "extra", correlation="c-1") == 1
    assert await (await engine.get("question")).ask("how", "second", timeout="60s") == "today: second"
    await engine.runs.resume("paused")
    await engine.breakers.close("older-fragile")
    await engine.queues.resume(type="older.tick.v1")


async def _fail(engine: Engine, run_id: str, undone: list[str]) -> None:
    run = await engine.get(run_id)
    with pytest.raises(RunFailed):
        await run.result("60s")
    steps = [record for record in await run.history() if record.kind is RecordKind.STEP and not record.failed]
    said = [json.loads(record.payload or "") for record in steps]
    assert [one for one in said if "undid" in one] == undone


async def _others(engine: Engine) -> None:
    """What is no unfinished run: schedules, locks, keys, deleted and cancelled runs, streams."""

    async def fired() -> bool:
        page = await engine.runs.list(type="older.tick.v1", status=Status.COMPLETED)
        return any(fire_time_of(run.id) is not None for run in page.runs)

    await eventually(fired, saying="the run of the schedule that was due")
    with pytest.raises(Locked):
        await engine.locks.acquire("printer")
    assert await engine.locks.force_release("printer")
    again = await engine.start(flows.plain(1), idempotency_key="key-1")
    assert again.id == "message"
    message = await engine.get("message")
    assert [item.value async for item in message.stream("items", follow=False)] == ["first", "on"]
    cancelled = await engine.get("cancelled")
    with pytest.raises(RunCancelled):
        await cancelled.result("60s")
    assert await engine.runs.undelete("deleted")
    assert await (await engine.get("deleted")).result() == [6, "older", "older", "older", "x", "older"]
