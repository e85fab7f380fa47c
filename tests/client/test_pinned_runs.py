"""Runs that are pinned to the build that began them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from perdure import Call, Context, Engine, Handle, RunNotFound, Status, UsageError, activity, step, workflow
from perdure.admin import Run
from perdure.blocking import Engine as BlockingEngine
from perdure.core.model.run import RunGroup
from perdure.core.model.worker_info import WorkerInfo, WorkerStatus, list_builds
from perdure.push import Pusher
from perdure.workflow.discover import Definable
from tests.helpers import eventually
from tests.stage import Stage, until

OLD, NEW = "1.4.2", "1.5.0"


def flows(build: str, *, pinned: bool | None = True) -> list[Definable]:
    """The code of one build: its steps have the name of the build, so that no other build can replay them."""

    @step(name=f"begun-{build}")
    async def begin() -> str:
        return build

    @workflow("pin.order.v1", pinned=pinned)
    async def order(ctx: Context) -> list[str]:
        before = await ctx.step(begin)
        return [before, await ctx.receive("go", str), await ctx.step(begin)]

    @activity("pin.activity.v1")
    async def act() -> str:
        return build

    @workflow("pin.child.v1")
    async def child(ctx: Context) -> str:
        await ctx.receive("go", str)
        return build

    @workflow("pin.free.v1", pinned=False)
    async def free(ctx: Context) -> str:
        return build

    @workflow("pin.parent.v1", pinned=True)
    async def parent(ctx: Context) -> list[str]:
        return [await ctx.call(act()), await ctx.call(free()), await ctx.call(child())]

    return [order, act, child, free, parent]


def engine_of(stage: Stage, build: str, **options: Any) -> Engine:
    return stage.engine(*flows(build), build=build, **options)


ORDER = Call.named("pin.order.v1")


@pytest.mark.shared
async def test_a_fork_of_a_pinned_run_is_continued_by_the_build_whose_records_it_has(stage: Stage) -> None:
    old, new = engine_of(stage, OLD), engine_of(stage, NEW)
    async with old.worker():
        first = await old.start(ORDER, queue="default")
        await until(first, Status.WAITING)
        # From its last step on, which has to be made again; and from the beginning.
        await first.send("go", "on")
        assert await first.result("60s") == [OLD, "on", OLD]
        last = await first.fork(from_step=f"begun-{OLD}#2")
        assert (await last.info()).pinned_to == OLD
        assert await last.result("60s") == [OLD, "on", OLD]
    again = await first.fork(from_step=f"begun-{OLD}")
    assert (await again.info()).pinned_to is None
    async with new.worker():
        await again.send("go", "on")
        assert await again.result("60s") == [NEW, "on", NEW]


@pytest.mark.shared
async def test_a_pinned_run_is_continued_by_its_build_while_new_runs_begin_with_the_new_one(stage: Stage) -> None:
    old, new = engine_of(stage, OLD), engine_of(stage, NEW)
    async with old.worker():
        first = await old.start(ORDER)
        await until(first, Status.WAITING)
    async with new.worker():
        await first.send("go", "on")
        second = await new.start(ORDER)
        await second.send("go", "on")
        assert await second.result("60s") == [NEW, "on", NEW]
        assert (await first.info()).status is Status.PENDING
        assert await new.runs.unserved([await first.info()]) == {first.id}
        why = await first.why()
        assert f"pinned to the build '{OLD}'" in why
        assert f"the live workers are of '{NEW}'" in why
        assert f"perdure runs unpin URL {first.id}" in why
        async with old.worker():
            assert await first.result("60s") == [OLD, "on", OLD]
    assert [(await run.info()).pinned_to for run in (first, second)] == [OLD, NEW]


@pytest.mark.shared
async def test_an_unpinned_run_is_continued_by_another_build_with_the_reason_in_the_trail(stage: Stage) -> None:
    old, new = engine_of(stage, OLD), engine_of(stage, NEW)
    async with old.worker():
        run = await old.start(ORDER)
        await until(run, Status.WAITING)
    assert (await new.check()).pinned == 1
    report = await new.check(pinned=True)
    assert (report.pinned, [one.run_id for one in report.findings]) == (0, [run.id])
    async with new.worker():
        await run.send("go", "on")
        assert await run.unpin("the host of 1.4.2 burned down")
        assert not await new.runs.unpin(run.id)
        # Its code does not follow the history, which a check has shown before.
        await until(run, Status.BLOCKED)
        assert "no longer follows its history" in await run.why()
    [event] = (await new.audit.list(kind="unpinned")).events
    assert (event.run_id, event.data) == (run.id, f'{{"build":"{OLD}","reason":"the host of 1.4.2 burned down"}}')


@pytest.mark.shared
async def test_children_of_a_pinned_run_stay_with_its_build_and_activities_do_not(stage: Stage) -> None:
    old, new = engine_of(stage, OLD), engine_of(stage, NEW)
    run = await old.start(Call.named("pin.parent.v1"))

    async def child(type: str) -> Handle[object]:
        async def found() -> tuple[Run, ...]:
            return (await old.runs.list(parent=run.id, type=type)).runs

        return await old.get((await eventually(found))[0].id)

    for type in ("pin.activity.v1", "pin.free.v1"):
        async with old.worker(types=["pin.parent.v1"]):
            made = await child(type)
        async with new.worker():
            assert await made.result("60s") == NEW
    async with old.worker():
        made = await child("pin.child.v1")
        assert (await made.info()).pinned_to == OLD
        await made.send("go", "on")
        assert await run.result("60s") == [NEW, NEW, OLD]


@pytest.mark.shared
async def test_an_engine_pins_all_workflows_that_do_not_say_otherwise(stage: Stage) -> None:
    engine = stage.engine(*flows(OLD, pinned=None), build=OLD, pinned=True)
    async with engine.worker():
        run, free = await engine.start(ORDER), await engine.start(Call.named("pin.free.v1"))
        assert await free.result("60s") == OLD
        await until(run, Status.WAITING)
    assert ((await run.info()).pinned_to, (await free.info()).pinned_to) == (OLD, None)


async def test_nothing_is_pinned_by_default(stage: Stage) -> None:
    engine = stage.engine(*flows(OLD, pinned=None), build=OLD)
    async with engine.worker(types=["pin.order.v1"]) as worker:
        run = await engine.start(ORDER)
        await until(run, Status.WAITING)
        assert [one.queues for one in await engine.workers.list() if one.id == worker.id] == [("default",)]
    assert (await run.info()).queue == "default"
    assert not await run.unpin()


@pytest.mark.shared
async def test_builds_are_listed_with_their_workers_and_runs(stage: Stage) -> None:
    old, new = engine_of(stage, OLD), engine_of(stage, NEW)
    assert await old.workers.builds() == []
    async with old.worker():
        runs = [await old.start(ORDER) for _ in range(3)]
        for run in runs:
            await until(run, Status.WAITING)
    async with new.worker():
        other = await new.start(ORDER)
        await until(other, Status.WAITING)
        found = await new.workers.builds()
        assert [(one.build, one.workers, one.runs.count, one.pinned.count) for one in found] == [
            (NEW, 1, 1, 1), (OLD, 0, 3, 3),
        ]  # fmt: skip
        report = await new.runs.bulk("unpin", where={"queue": f"default~{OLD}"}, reason="gone")
        assert (report.done, report.failed) == (3, 0)
        found = await new.workers.builds()
        assert [(one.build, one.pinned.count) for one in found] == [(NEW, 1), (OLD, 0)]
    counts = {str(one.value): one.count for one in await new.runs.count_by("build", type="pin.order.v1")}
    assert counts == {OLD: 3, NEW: 1}


def test_workers_without_a_build_are_listed_with_the_runs_that_no_build_has() -> None:
    nameless = WorkerInfo(id="w", host="h", pid=1, queues=("q",), types=("t",), slots=5, lease=15_000_000)
    begun = [RunGroup("", 4), RunGroup(OLD, 2)]
    found = list_builds([nameless, replace(nameless, build=OLD)], begun, [RunGroup(f"q~{OLD}", 1)])
    assert [(one.build, one.workers, one.runs.count, one.pinned.count) for one in found] == [
        ("", 1, 4, 0), (OLD, 1, 2, 1),
    ]  # fmt: skip
    # Runs alone may only not have begun.
    assert list_builds([replace(nameless, status=WorkerStatus.STOPPED)], begun[:1], []) == []


async def test_a_run_without_history_is_pinned_to_the_build_that_continues_it(on_disk: Stage) -> None:
    """The first worker died between its claim and the pin."""
    old, new = engine_of(on_disk, OLD), engine_of(on_disk, NEW)
    run = await old.start(ORDER)
    assert on_disk.store is not None
    await new.workers.list()
    begun = "UPDATE perdure_runs SET build = '1.4.2', started_at = 1, seed = 'ab', token = 1"
    await on_disk.store._write("test", "t", lambda tx: tx.execute(begun, {}))
    async with new.worker():
        await run.send("go", "on")
        assert await run.result("60s") == [NEW, "on", NEW]
    assert (await run.info()).build == NEW


async def test_a_pin_needs_a_build_whose_name_fits(on_disk: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    long = on_disk.engine(*flows(OLD), build="x" * 199)
    with pytest.raises(UsageError, match="shorter build"):
        await long.worker().start()
    monkeypatch.setattr("perdure.client.session.build_of", lambda _: "")
    unnamed = on_disk.engine(*flows(OLD))
    with pytest.raises(UsageError, match="the build of this application is unknown"):
        await unnamed.worker().start()
    with pytest.raises(UsageError, match="pinned"):
        workflow("x", pinned="yes")  # type: ignore[call-overload] # that is the point
    with pytest.raises(RunNotFound):
        await long.runs.unpin("unknown")


async def test_a_queue_that_is_paused_or_limited_holds_pinned_runs_too(on_disk: Stage) -> None:
    engine = engine_of(on_disk, OLD)
    async with engine.worker():
        run = await engine.start(ORDER)
        await until(run, Status.WAITING)
        await engine.queues.pause(queue="default", reason="lunch")
        await run.send("go", "on")
        await asyncio.sleep(0.2)
        assert (await run.info()).status is Status.PENDING
        assert "the queue 'default' was paused" in await run.why()
        await engine.limits.set("queue:default", concurrency=1)
        await engine.queues.resume(queue="default")
        assert await run.result("60s") == [OLD, "on", OLD]


async def test_a_pusher_executes_the_pinned_runs_of_its_build_alone(on_disk: Stage) -> None:
    old, new = engine_of(on_disk, OLD), engine_of(on_disk, NEW)
    run = await old.start(ORDER)
    async with Pusher(old) as pusher:
        assert await pusher.due() == [run.id]
        await pusher.execute(run.id)
        await run.send("go", "on")
        assert await pusher.due() == [run.id]
        async with Pusher(new) as other:
            assert await other.due() == []
            with pytest.raises(UsageError):
                await other.execute(run.id)
        await pusher.execute(run.id)
    assert await run.result("60s") == [OLD, "on", OLD]


def test_the_blocking_facade_unpins_and_lists_builds(on_disk: Stage) -> None:
    with BlockingEngine(on_disk.url, flows(OLD), build=OLD) as engine:
        with engine.worker():
            run = engine.start(ORDER)
            run.send("go", "on")
            assert run.result("60s") == [OLD, "on", OLD]
            assert [one.build for one in engine.workers.builds()] == [OLD]
        assert not run.unpin()
        assert not engine.runs.unpin(run.id, "it has finished")
