from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from perdure import Context, Engine, Retention, RunFailed, RunNotFound, Status, UsageError, workflow
from perdure.admin import Reason
from perdure.worker import sweeper
from tests.helpers import eventually
from tests.servers.databases import Databases
from tests.servers.schemas import Schemas
from tests.stage import Stage, set_up, until

pytestmark = pytest.mark.every_database


@workflow("old.double.v1")
async def double(ctx: Context, number: int) -> int:
    if number < 0:
        raise ValueError("too small")
    return 2 * number


@workflow("old.parent.v1")
async def parent(ctx: Context) -> int:
    total = await ctx.call(double(1))
    await ctx.receive("go")
    return total


async def test_a_deleted_run_is_hidden_restored_and_its_result_stays_readable(stage: Stage) -> None:
    engine = stage.engine(double, parent)
    async with engine.worker():
        run = await engine.start(double(2), id="d")
        await run.result("20s")
        waiting = await engine.start(parent(), id="p")
        await until(waiting, Status.WAITING)
        with pytest.raises(UsageError, match=r"cancel it, and purge it when it has ended"):
            await waiting.delete(purge=True)
        await waiting.cancel()
    assert await run.delete("seen")
    assert not await run.delete("seen")
    assert "d" not in [one.id for one in (await engine.runs.list()).runs]
    assert [one.id for one in (await engine.runs.list(deleted=True)).runs] == ["d"]
    assert "d" in [one.id for one in (await engine.runs.list(deleted=None)).runs]
    assert await run.result() == 4
    assert (await engine.start(double(2), id="d")).id == "d"
    assert await run.undelete()
    assert "d" in [one.id for one in (await engine.runs.list()).runs]
    with pytest.raises(RunNotFound):
        await engine.runs.delete("missing")
    with pytest.raises(RunNotFound):
        await engine.runs.undelete("missing")
    assert [event.kind for event in await run.events()][-2:] == ["deleted", "undeleted"]


async def test_an_unfinished_run_is_deleted_does_nothing_and_goes_on_when_it_is_restored(stage: Stage) -> None:
    engine = stage.engine(double, parent)
    async with engine.worker():
        begun = await engine.start(parent(), id="p")
        await until(begun, Status.WAITING)
        assert await begun.delete("by mistake")
        assert "p" not in [one.id for one in (await engine.runs.list()).runs]
        await begun.send("go")
        ready = await engine.start(double(3), id="later", at="1h")
        assert await ready.delete()
        assert [(await run.info()).reason for run in (begun, ready)] == [Reason.PAUSED] * 2
        assert await begun.undelete()
        assert await begun.result("30s") == 2
        assert await ready.undelete()
        assert (await ready.info()).reason is Reason.TIMER
        await ready.cancel()


async def test_finished_runs_are_pruned_by_status_and_type_and_children_go_with_their_parents(stage: Stage) -> None:
    engine = stage.engine(double, parent)
    async with engine.worker():
        await (await engine.start(double(2), id="good", idempotency_key="k")).result("20s")
        with pytest.raises(RunFailed):
            await (await engine.start(double(-1), id="bad")).result("20s")
        waiting = await engine.start(parent(), id="p")
        await eventually(lambda: _is_there(stage, "p/old.double.v1"))
        await until(waiting, Status.WAITING)
        assert (await engine.runs.prune("1h")).runs == 0
        assert (await engine.runs.prune(0, status="completed", types="old.%")).runs == 1
        assert sorted(run.id for run in (await engine.runs.list()).runs) == ["bad", "p", "p/old.double.v1"]
        # The key is free.
        assert await (await engine.start(double(3), id="good", idempotency_key="k")).result("20s") == 6
        await waiting.send("go")
        assert await waiting.result("20s") == 2
    assert (await engine.runs.prune(0, types=["old.parent.v1"])).runs == 2
    gone = await engine.runs.prune(0)
    assert (gone.runs, gone.spared) == (2, 0)
    for table in ("runs", "history", "messages", "outputs", "topics", "events"):
        assert await stage.rows(f"SELECT * FROM perdure_{table}") == []


async def _is_there(stage: Stage, run_id: str) -> bool:
    return bool(await stage.rows("SELECT 1 FROM perdure_runs WHERE id = ? AND finished_at > 0", run_id))


@pytest.mark.parametrize("kind", ["file", "postgres", "mysql"])
async def test_several_who_prune_at_once_delete_each_run_once_and_disturb_no_worker(
    kind: str, tmp_path: Path, schemas: Schemas, databases: Databases
) -> None:
    async with set_up(kind, tmp_path, schemas, databases) as stage:
        engine = stage.engine(double)
        others = [stage.engine(double) for _ in range(3)]
        async with engine.worker():
            runs = await engine.start_many([double(number) for number in range(120)])
            for run in runs:
                await run.result("30s")
            busy = asyncio.ensure_future(_start_some(engine))
            gone = await asyncio.gather(*(other.runs.prune(0, types="old.%") for other in others))
            assert await busy == 40
        assert sum(one.runs for one in gone) >= 120
        assert await engine.runs.prune(0) is not None
        assert await stage.rows("SELECT id FROM perdure_runs") == []
        assert await stage.rows("SELECT run_id FROM perdure_events") == []


async def _start_some(engine: Engine) -> int:
    """Runs that may be gone as soon as they are done; what is counted is what they answer."""
    done = 0
    for number in range(40):
        run = await engine.start(double(number))
        try:
            assert await run.result("30s") == 2 * number
        except RunNotFound:
            pass
        done += 1
    return done


async def test_a_wait_for_a_run_that_is_deleted_for_good_ends(on_disk: Stage) -> None:
    engine = on_disk.engine(double)
    run = await engine.start(double(2), id="gone")
    waiting = asyncio.ensure_future(run.result("20s"))
    await eventually(lambda: any(watch._waiters for watch in engine._session.results._watches.values()))
    assert on_disk.path is not None
    with closing(sqlite3.connect(on_disk.path)) as database, database:
        database.execute("DELETE FROM perdure_runs")
    with pytest.raises(RunNotFound, match="disappeared while its result was waited for"):
        await waiting


async def test_what_was_deleted_is_pruned_apart_from_the_rest(on_disk: Stage) -> None:
    engine = on_disk.engine(double)
    async with engine.worker():
        for name in ("a", "b"):
            await (await engine.start(double(2), id=name)).result("20s")
    await engine.runs.delete("a")
    assert (await engine.runs.prune(0, deleted=True)).runs == 1
    assert [run.id for run in (await engine.runs.list(deleted=None)).runs] == ["b"]


async def test_workers_delete_what_is_older_than_the_retention_says(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeper, "RETENTION_INTERVAL", 0.3)
    engine = stage.engine(double, retention=Retention(completed="50ms", deleted="50ms", events="1h"))
    async with engine.worker():
        # Its result may be gone before it is read.
        await engine.start(double(2), id="good")
        for name in ("bad", "worse"):
            with pytest.raises(RunFailed):
                await (await engine.start(double(-1), id=name)).result("20s")
        await engine.runs.delete("worse")
        await eventually(lambda: _are_left(stage, ["bad"]))
        # A second look goes on where the first one stopped, and finds what has become old since.
        await engine.start(double(2), id="good")
        await eventually(lambda: _are_left(stage, ["bad"]))


async def test_workers_delete_events_that_are_older_than_the_retention_says(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeper, "RETENTION_INTERVAL", 0.3)
    engine = stage.engine(double, retention=Retention(events="50ms"))
    async with engine.worker():
        run = await engine.start(double(2), id="good")
        await run.result("20s")

        async def are_gone() -> bool:
            # The newest event stays.
            return len(await run.events()) == 1

        await eventually(are_gone, saying="the events being deleted")
    assert await _are_left(stage, ["good"])


async def _are_left(stage: Stage, run_ids: list[str]) -> bool:
    return [row[0] for row in await stage.rows("SELECT id FROM perdure_runs")] == run_ids


async def test_one_duration_is_for_all_and_nonsense_is_refused(on_disk: Stage) -> None:
    assert Retention.of("30d") == Retention(completed="30d", failed="30d", cancelled="30d", deleted="30d")
    assert Retention.of(None) is None
    assert len(Retention(failed="1h").rules(0)) == 1
    for wrong in ("0s", "soon", Retention(completed=0)):
        with pytest.raises(UsageError):
            on_disk.engine(double, retention=wrong)


async def test_what_stays_is_looked_at_once_a_day_and_not_every_time(on_disk: Stage) -> None:
    engine = on_disk.engine(double)
    async with engine.worker():
        for number in range(3):
            with pytest.raises(RunFailed):
                await (await engine.start(double(-1), id=f"bad-{number}")).result("20s")
    assert on_disk.store is not None
    keeper = sweeper.RetentionPruner(on_disk.store, engine._session.system, Retention(completed="1us"))
    monkey = pytest.MonkeyPatch()
    with monkey.context() as patch:
        patch.setattr(sweeper, "PRUNED_RUNS", 1)
        assert await keeper.prune() == 0
        seen: list[str | None] = []
        prune = on_disk.store.prune

        async def watched(*args: object) -> object:
            seen.append(args[2])  # type: ignore[arg-type] # a cursor
            return await prune(*args)  # type: ignore[arg-type] # as they came

        patch.setattr(on_disk.store, "prune", watched)
        assert await keeper.prune() == 0
    # It goes on behind what it saw before, where there is nothing.
    assert (len(seen), None in seen) == (1, False)
