"""Children that a workflow starts and does not sit and wait for."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import pytest

from perdure import Context, Fatal, Retry, RunCancelled, RunFailed, Status, UsageError, workflow
from perdure.errors import ChildLimit
from tests.helpers import eventually
from tests.stage import Stage, until

Closing = Literal["cancel", "abandon", "wait"]


@workflow("spawn.echo.v1")
async def echo(ctx: Context, word: str) -> str:
    return word


@workflow("spawn.patient.v1")
async def patient(ctx: Context) -> str:
    return await ctx.receive("word", str)


@workflow("spawn.closing.v1")
async def closing(ctx: Context, on_close: Closing) -> str:
    ctx.spawn(patient(), on_close=on_close)
    await ctx.receive("end")
    return "ended"


async def test_a_spawned_child_runs_beside_its_parent_and_gives_its_result_when_awaited(stage: Stage) -> None:
    @workflow("spawn.parent.v1")
    async def parent(ctx: Context) -> list[str]:
        child = ctx.spawn(patient())
        assert child.id == f"{ctx.run_id}/spawn.patient.v1"
        other = ctx.spawn(echo("other"))
        child.send("word", "hello")
        return [await child, await child.result(), *await asyncio.gather(other, other.result())]

    engine = stage.engine(parent, patient, echo)
    async with engine.worker():
        run = await engine.start(parent(), id="p")
        assert await run.result("20s") == ["hello", "hello", "other", "other"]


async def test_giving_up_the_wait_for_a_spawned_child_leaves_it_alone(stage: Stage) -> None:
    @workflow("spawn.impatient.v1")
    async def impatient(ctx: Context) -> str:
        child = ctx.spawn(patient())
        try:
            async with asyncio.timeout(0.01):
                await child
        except TimeoutError:
            child.send("word", "still there")
        return await child

    engine = stage.engine(impatient, patient)
    async with engine.worker():
        assert await (await engine.start(impatient())).result("20s") == "still there"


async def test_a_spawned_child_is_cancelled_by_its_handle(stage: Stage) -> None:
    @workflow("spawn.canceller.v1")
    async def canceller(ctx: Context) -> str:
        child = ctx.spawn(patient())
        await ctx.sleep("20ms")
        child.cancel("not needed")
        try:
            return await child
        except RunCancelled as error:
            return str(error)

    engine = stage.engine(canceller, patient)
    async with engine.worker():
        assert "not needed" in await (await engine.start(canceller())).result("20s")


async def test_a_child_spawned_and_cancelled_in_one_breath_never_runs(stage: Stage) -> None:
    @workflow("spawn.hasty.v1")
    async def hasty(ctx: Context) -> str:
        child = ctx.spawn(patient())
        child.cancel("too soon")
        try:
            return await child
        except RunCancelled as error:
            return str(error)

    engine = stage.engine(hasty, patient)
    async with engine.worker():
        run = await engine.start(hasty(), id="p")
        assert "too soon" in await run.result("20s")
    assert (await (await engine.get("p/spawn.patient.v1")).info()).started_at == 0


async def test_a_child_that_is_open_when_its_parent_ends_is_cancelled(stage: Stage) -> None:
    engine = stage.engine(closing, patient)
    async with engine.worker():
        run = await engine.start(closing("cancel"), id="p")
        await until(run, Status.WAITING)
        await run.send("end")
        assert await run.result("20s") == "ended"
        with pytest.raises(RunCancelled, match="no longer waits"):
            await (await engine.get("p/spawn.patient.v1")).result("20s")


async def test_an_abandoned_child_is_started_although_its_parent_ends_at_once(stage: Stage) -> None:
    @workflow("spawn.brief.v1")
    async def brief(ctx: Context, ends: str) -> str:
        ctx.spawn(echo("here"), id=f"left by {ends}", on_close="abandon")
        if ends == "failing":
            raise ValueError("no more")
        return "gone"

    engine = stage.engine(brief, echo)
    async with engine.worker():
        await (await engine.start(brief("ending"))).result("20s")
        with pytest.raises(RunFailed):
            await (await engine.start(brief("failing"))).result("20s")
        for ends in ("ending", "failing"):
            assert await (await engine.get(f"left by {ends}")).result("20s") == "here"


async def test_an_abandoned_child_outlives_its_parent_and_its_word_goes_nowhere(stage: Stage) -> None:
    engine = stage.engine(closing, patient)
    async with engine.worker():
        run = await engine.start(closing("abandon"), id="p")
        await until(run, Status.WAITING)
        await run.send("end")
        assert await run.result("20s") == "ended"
        child = await engine.get("p/spawn.patient.v1")
        before = await run.info()
        await child.send("word", "alone")
        assert await child.result("20s") == "alone"
        assert await run.info() == before


async def test_a_parent_that_waits_for_its_child_ends_after_it_with_its_own_outcome(stage: Stage) -> None:
    engine = stage.engine(closing, patient)
    run = await engine.start(closing("wait"), id="p")
    async with engine.worker():
        await until(run, Status.WAITING)
        await run.send("end")
        child = await engine.get("p/spawn.patient.v1")
        await until(child, Status.WAITING)
        await until(run, Status.WAITING)
    # The next worker finds a workflow that has ended and a run that has not.
    async with engine.worker():
        assert await run.status() is Status.WAITING
        await child.send("word", "last")
        assert await run.result("20s") == "ended"
        assert (await child.info()).finished_at <= (await run.info()).finished_at


async def test_a_parent_that_failed_waits_for_its_child_all_the_same(stage: Stage) -> None:
    @workflow("spawn.failing.v1")
    async def failing(ctx: Context) -> None:
        ctx.spawn(patient(), on_close="wait")
        raise ValueError("the reason")

    engine = stage.engine(failing, patient)
    async with engine.worker():
        run = await engine.start(failing(), id="p")
        await until(run, Status.WAITING)
        child = await engine.get("p/spawn.patient.v1")
        await child.cancel()
        with pytest.raises(RunFailed, match="the reason"):
            await run.result("20s")


@pytest.mark.parametrize("on_close", ["cancel", "wait"])
async def test_cancelling_a_parent_cancels_what_it_spawned(stage: Stage, on_close: Closing) -> None:
    engine = stage.engine(closing, patient)
    async with engine.worker():
        run = await engine.start(closing(on_close), id="p")
        await until(run, Status.WAITING)
        await run.cancel("enough")
        with pytest.raises(RunCancelled, match="enough"):
            await run.result("20s")
        with pytest.raises(RunCancelled):
            await (await engine.get("p/spawn.patient.v1")).result("20s")


async def test_a_parent_cancelled_while_it_waits_for_its_child_stops_the_child(stage: Stage) -> None:
    engine = stage.engine(closing, patient)
    async with engine.worker():
        run = await engine.start(closing("wait"), id="p")
        await until(run, Status.WAITING)
        await run.send("end")
        child = await engine.get("p/spawn.patient.v1")
        await until(child, Status.WAITING)
        await until(run, Status.WAITING)
        await run.cancel("hurry")
        assert await run.result("20s") == "ended"
        with pytest.raises(RunCancelled):
            await child.result("20s")


async def test_a_run_that_is_started_is_no_child(stage: Stage) -> None:
    @workflow("spawn.starter.v1")
    async def starter(ctx: Context) -> list[str]:
        return [ctx.start(patient()), ctx.start(patient(), id="by-name", priority=7), ctx.start(patient(), at="1h")]

    engine = stage.engine(starter, patient)
    async with engine.worker():
        run = await engine.start(starter(), id="s")
        ids = await run.result("20s")
        assert ids == ["s/spawn.patient.v1", "by-name", "s/spawn.patient.v1#3"]
        started = [await (await engine.get(run_id)).info() for run_id in ids]
        assert [one.parent_id for one in started] == [None] * 3
        assert started[1].priority == 7
        assert started[2].status is Status.WAITING
        await engine.send(ids[0], "word", "own life")
        assert await (await engine.get(ids[0])).result("20s") == "own life"


async def test_starting_a_run_that_is_there_already_leaves_it_as_it_is(stage: Stage) -> None:
    @workflow("spawn.starter.v1")
    async def starter(ctx: Context) -> str:
        return ctx.start(echo("second"), id="there")

    engine = stage.engine(starter, echo)
    async with engine.worker():
        first = await engine.start(echo("first"), id="there")
        assert await (await engine.start(starter())).result("20s") == "there"
        assert await first.result("20s") == "first"


async def test_children_of_children_end_where_the_limit_is(stage: Stage) -> None:
    @workflow("spawn.deep.v1")
    async def deep(ctx: Context) -> int:
        try:
            return 1 + await ctx.call(deep())
        except ChildLimit as error:
            assert ctx.run_id in str(error)
            assert "limit is 3" in str(error)
            return 0

    engine = stage.engine(deep)
    async with engine.worker(child_depth=3):
        assert await (await engine.start(deep())).result("20s") == 3
    assert len((await engine.runs.list()).runs) == 4


async def test_a_run_has_only_so_many_children_under_way(stage: Stage) -> None:
    @workflow("spawn.fan.v1")
    async def fan(ctx: Context) -> list[str]:
        children = [ctx.spawn(patient()) for _ in range(3)]
        try:
            await ctx.call(echo("too many"))
        except ChildLimit as error:
            assert ctx.run_id in str(error)
        for child in children:
            child.send("word", "done")
        await asyncio.gather(*children)
        return [await ctx.call(echo("room again"))]

    engine = stage.engine(fan, patient, echo)
    async with engine.worker(open_children=3):
        assert await (await engine.start(fan())).result("20s") == ["room again"]


async def test_options_of_a_child_that_make_no_sense_are_refused(on_disk: Stage) -> None:
    wrong: list[dict[str, Any]] = [{"on_close": "explode"}, {"priority": "high"}, {"id": ""}, {"queue": "a/b"}]

    @workflow("spawn.wrong.v1")
    async def mistaken(ctx: Context) -> int:
        refused = 0
        for options in wrong:
            try:
                ctx.spawn(echo("never"), **options)
            except UsageError:
                refused += 1
        return refused

    engine = on_disk.engine(mistaken, echo)
    async with engine.worker():
        assert await (await engine.start(mistaken())).result("20s") == len(wrong)
    assert len((await engine.runs.list()).runs) == 1


async def until_child(stage: Stage, child_id: str, status: str) -> None:
    """Wait until a child was started and stands there."""

    async def there() -> bool:
        return await stage.rows(f"SELECT status FROM perdure_runs WHERE id = '{child_id}'") == [(status,)]

    await eventually(there, saying=f"{child_id} being {status}")


@workflow("spawn.mixed.v1", retry=Retry.fixed("1ms", attempts=2))
async def mixed(ctx: Context, ends: str) -> str:
    ctx.spawn(patient(), id=f"{ctx.run_id}-cancel")
    ctx.spawn(patient(), id=f"{ctx.run_id}-wait", on_close="wait")
    if ends != "at once":
        await ctx.receive("end")
    if ends == "fatal":
        raise Fatal("no use")
    if ends == "again" and not await ctx.receive("second", bool):
        raise ConnectionError
    return "ended"


@pytest.mark.parametrize("ends", ["at once", "later", "fatal", "elsewhere"])
async def test_children_to_be_cancelled_do_not_go_on_while_others_are_waited_for(stage: Stage, ends: str) -> None:
    engine = stage.engine(mixed, patient)
    run = await engine.start(mixed(ends), id="p")
    async with engine.worker():
        if ends != "at once":
            await until_child(stage, "p-wait", "waiting")
            await run.send("end")
        if ends == "at once":
            # It is never started.
            await until_child(stage, "p-wait", "waiting")
            assert await stage.rows("SELECT id FROM perdure_runs WHERE parent_id = 'p'") == [("p-wait",)]
        else:
            await until_child(stage, "p-cancel", "cancelled")
        assert not (await run.status()).finished
    # Another worker, which has to replay.
    async with engine.worker():
        await (await engine.get("p-wait")).send("word", "there")
        if ends == "fatal":
            with pytest.raises(RunFailed, match="no use"):
                await run.result("60s")
        else:
            assert await run.result("60s") == "ended"


async def test_a_run_that_will_be_tried_again_keeps_its_children(stage: Stage) -> None:
    engine = stage.engine(mixed, patient)
    async with engine.worker():
        run = await engine.start(mixed("again"), id="p")
        await until_child(stage, "p-wait", "waiting")
        await run.send("end")
        await run.send("second", False)
        await (await engine.get("p-wait")).send("word", "there")
        with pytest.raises(RunFailed):
            await run.result("60s")
        # It had been tried twice by then.
        assert (await run.info()).attempt == 2
        await until_child(stage, "p-cancel", "cancelled")
