"""A cell that cannot be decoded blocks only the run that it belongs to, and shows why; other runs go on."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from perdure import Breaker, Context, Engine, Every, Fair, Limit, RunFailed, Status, activity, workflow
from perdure.admin import Reason
from perdure.core.time.duration import NEVER
from perdure.errors import InvalidId
from perdure.workflow.activity import Activity
from tests.helpers import eventually
from tests.stage import Stage, until
from tests.worker.damage import damage

pytestmark = pytest.mark.every_database


@activity("damaged.limited.v1", limit=Limit("narrow", concurrency=1))
async def limited(number: int) -> int:
    await asyncio.sleep(0.01)
    return number


@activity("damaged.guarded.v1", breaker=Breaker("shaky"), limit=Limit("door", concurrency=1))
async def guarded(number: int) -> int:
    await asyncio.sleep(0.01)
    return number


@activity("damaged.elsewhere.v1", limit=Limit("wide", concurrency=3))
async def elsewhere(number: int) -> int:
    return number


async def act(number: int) -> int:
    return number


@workflow("damaged.well.v1")
async def well(ctx: Context) -> int:
    return await ctx.step(act, 1)


@workflow("damaged.told.v1")
async def told(ctx: Context) -> int:
    first = await ctx.step(act, 1)
    return first + await ctx.receive("go", int)


ALL = (limited, guarded, elsewhere, well, told)


async def _neighbours_finish(engine: Engine) -> None:
    assert await (await engine.start(well())).result("60s") == 1
    assert await (await engine.start(elsewhere(5))).result("60s") == 5


async def test_a_place_in_line_that_cannot_be_read_is_asked_for_anew(stage: Stage) -> None:
    engine = stage.engine(*ALL)
    assert stage.store is not None
    runs = [await engine.start(limited(number)) for number in range(4)]
    async with engine.worker(slots=1, grace=0.1):
        await eventually(lambda: stage.rows("SELECT 1 FROM perdure_lines"), saying="a run standing in line")
    await damage(stage, "UPDATE perdure_lines SET gating = '{'")
    async with engine.worker():
        await _neighbours_finish(engine)
        assert [await run.result("60s") for run in runs] == list(range(4))


@pytest.mark.parametrize("cell", ["override = '{'", "override = '[]'", "breaker = '{\"circuit\": 7}'", "burst = -3"])
async def test_a_gate_that_cannot_be_read_lets_nothing_pass_until_it_is_set_anew(stage: Stage, cell: str) -> None:
    engine = stage.engine(*ALL)
    async with engine.worker():
        assert await (await engine.start(limited(0))).result("60s") == 0
    await engine.limits.set("narrow", concurrency=1)
    await damage(stage, f"UPDATE perdure_gates SET {cell} WHERE name = 'narrow'")
    async with engine.worker() as worker:
        run = await engine.start(limited(7))
        if cell.startswith("burst"):
            # The code has the burst, so the cell is not needed.
            assert await run.result("60s") == 7
            return
        await until(run, Status.WAITING)
        await _neighbours_finish(engine)
        assert "is set aside and lets nothing pass" in await run.why()
        [gate] = [one for one in await engine.limits.list() if one.name == "narrow"]
        assert "perdure_gates has data that cannot be read, at name 'narrow'" in gate.problem
        assert not worker.errors
        if cell.startswith("override"):
            await engine.limits.clear("narrow")
        else:
            await damage(stage, "UPDATE perdure_gates SET breaker = '', due_at = 0 WHERE name = 'narrow'")
        assert await run.result("60s") == 7


async def test_a_breaker_that_cannot_be_read_lets_nothing_pass_until_it_is_reset(stage: Stage) -> None:
    engine = stage.engine(*ALL)
    async with engine.worker():
        assert await (await engine.start(guarded(0))).result("60s") == 0
        await damage(stage, "UPDATE perdure_gates SET breaker = '{' WHERE name = 'breaker:shaky'")
        run = await engine.start(guarded(7))
        await until(run, Status.WAITING)
        await _neighbours_finish(engine)
        assert "'shaky' is set aside" in await run.why()
        [view] = await engine.breakers.list()
        assert "cannot be read" in view.problem
        await engine.breakers.reset("shaky")
        assert await run.result("60s") == 7


async def test_a_gate_whose_row_is_gone_is_made_again(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.worker.sweeper._FORGETS_EVERY", 1)
    engine = stage.engine(*ALL)
    runs = [await engine.start(limited(number)) for number in range(4)]
    async with engine.worker(slots=1, grace=0.1):
        await eventually(lambda: stage.rows("SELECT 1 FROM perdure_lines"), saying="a run standing in line")
    await damage(stage, "DELETE FROM perdure_gates WHERE name = 'narrow'")
    async with engine.worker(lease=2.0):
        assert [await run.result("60s") for run in runs] == list(range(4))


async def test_a_schedule_that_cannot_be_read_is_set_aside_and_others_fire(stage: Stage) -> None:
    engine = stage.engine(*ALL)
    await engine.schedules.create("broken", well(), Every("100ms"))
    await engine.schedules.create("sound", well(), Every("100ms"))
    await damage(stage, "UPDATE perdure_schedules SET misfire = '{', due_at = 0 WHERE id = 'broken'")
    async with engine.worker() as worker:

        async def fired() -> bool:
            return any(run.id.startswith("sound") for run in (await engine.runs.list()).runs)

        await eventually(fired, saying="the sound schedule firing")

        async def shown() -> bool:
            listed = {one.id: one.error for one in await engine.schedules.list()}
            return "perdure_schedules has data that cannot be read, at id 'broken'" in listed["broken"]

        await eventually(shown, saying="the broken schedule saying so")
        assert not worker.errors


@pytest.mark.parametrize(
    "cell",
    [
        "UPDATE perdure_runs SET inbox_read = 99 WHERE id = 'victim'",
        "UPDATE perdure_runs SET inbox_read = -5 WHERE id = 'victim'",
        "UPDATE perdure_messages SET seq = -1 WHERE run_id = 'victim'",
        "DELETE FROM perdure_messages WHERE run_id = 'victim'",
    ],
)
async def test_an_inbox_whose_counter_and_rows_disagree_sets_its_run_aside(stage: Stage, cell: str) -> None:
    engine = stage.engine(*ALL)
    victim = await engine.start(told(), id="victim")
    async with engine.worker():
        await until(victim, Status.WAITING)
    await victim.send("go", 5)
    await damage(stage, cell)
    async with engine.worker():
        await until(victim, Status.BLOCKED)
        run = await victim.info()
        assert run.reason is Reason.UNDECODABLE
        assert "StoreCorrupt" in (run.error or "")
        assert "'victim'" in (run.error or "")
        await _neighbours_finish(engine)


BAD = {"nul": "a\0b", "surrogate": "\ud800", "long": "a\0" + "x" * 300}


@activity("damaged.fair.v1", limit=Limit("turns", concurrency=1), fair=Fair(lambda which: BAD.get(which) or which))
async def fair(which: str) -> str:
    return which


@activity("damaged.keyed.v1", limit=Limit("keyed", concurrency=1, key=lambda which: BAD.get(which) or which))
async def keyed(which: str) -> str:
    return which


@pytest.mark.parametrize("which", list(BAD))
@pytest.mark.parametrize("kind", [fair, keyed])
async def test_a_run_whose_key_cannot_be_one_fails_alone(stage: Stage, kind: Activity[[str], str], which: str) -> None:
    engine = stage.engine(fair, keyed, well)
    async with engine.worker() as worker:
        before, victim, after = [await engine.start(kind(one)) for one in ("fine", which, "fine")]
        with pytest.raises(RunFailed) as failed:
            await victim.result("60s")
        assert isinstance(failed.value.__cause__, InvalidId)
        assert await before.result("60s") == "fine"
        assert await after.result("60s") == "fine"
        assert await (await engine.start(well())).result("60s") == 1
        assert not worker.errors


async def test_a_key_that_cannot_be_one_is_refused_where_the_call_gives_it(stage: Stage) -> None:
    engine = stage.engine(fair, keyed, well)
    for bad in BAD.values():
        with pytest.raises(InvalidId):
            await engine.start(keyed("x").options(fair=Fair(lambda which, bad=bad: bad)))
        with pytest.raises(InvalidId):
            await engine.start(keyed("x").options(limit=Limit("other", concurrency=1, key=lambda which, bad=bad: bad)))


async def test_long_fair_keys_are_told_apart(stage: Stage) -> None:
    engine = stage.engine(fair)
    async with engine.worker():
        runs = [await engine.start(fair("x" * 300 + end)) for end in "ab"]
        assert [(await run.result("60s"))[-1] for run in runs] == ["a", "b"]


async def test_a_stored_error_cannot_hide_the_methods_of_its_class(stage: Stage) -> None:
    engine = stage.engine(well)
    run = await engine.start(well(), id="victim")
    bad = (
        r'{"type":"ValueError","message":"m","args":"[\"m\"]",'
        r'"state":"{\"add_note\":1,\"with_traceback\":2}","notes":["n"]}'
    )
    await damage(stage, "UPDATE perdure_runs SET status = 'failed', finished_at = 1, error = :bad", bad=bad)
    with pytest.raises(RunFailed) as failed:
        await run.result("60s")
    assert isinstance(failed.value.__cause__, ValueError)
    assert "n" in failed.value.__cause__.__notes__


#: Text that no other database stores. A run that cannot be named, or of no known type or queue, is never claimed.
NO_TEXT = "CAST(x'ff7b22fe' AS TEXT)"
NEVER_CLAIMED = ("id", "type", "queue")


@pytest.mark.parametrize("column", [*NEVER_CLAIMED, "input", "options", "home", "seed"])
async def test_text_that_is_not_utf_8_concerns_its_run_alone(tmp_path: Path, column: str) -> None:
    stage = Stage(tmp_path / "runs.db")
    engine = stage.engine(*ALL)
    victim = await engine.start(well(), id="victim")
    async with engine.worker(grace=0.1):
        assert await victim.result("60s") == 1
    await damage(stage, "DELETE FROM perdure_history")
    await damage(stage, f"UPDATE perdure_runs SET status = 'pending', finished_at = 0, {column} = {NO_TEXT}")
    async with engine.worker() as worker:
        await _neighbours_finish(engine)
        if column not in NEVER_CLAIMED:
            await eventually(lambda: _settled(stage), saying="the victim at rest")
        assert worker.problem == ""
    await stage.close()


async def _settled(stage: Stage) -> bool:
    return bool(
        await stage.rows("SELECT 1 FROM perdure_runs WHERE id = 'victim' AND status IN ('blocked', 'completed')")
    )


async def test_a_run_of_an_unknown_status_is_listed_as_blocked_and_undecodable(on_disk: Stage) -> None:
    engine = on_disk.engine(*ALL)
    for id in ("one", "victim", "three"):
        await engine.start(well(), id=id)
    await damage(on_disk, "PRAGMA ignore_check_constraints = ON")
    await damage(on_disk, "UPDATE perdure_runs SET status = 'newer' WHERE id = 'victim'")
    runs = {run.id: run for run in (await engine.runs.list()).runs}
    assert set(runs) == {"one", "victim", "three"}
    assert (runs["victim"].status, runs["victim"].reason) == (Status.BLOCKED, Reason.UNDECODABLE)
    assert "unknown status 'newer'" in (runs["victim"].error or "")
    assert on_disk.store is not None
    assert len(await on_disk.store.run_times(0, NEVER, 10)) == 2
