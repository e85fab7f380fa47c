"""What runs wait for and what workers execute is in the database by name, on every database."""

from __future__ import annotations

import asyncio
import re
import threading
from typing import Any

import pytest
from msgspec.structs import replace

from perdure import Context, Engine, Handle, Limit, Retry, Status, activity, activity_info, step, workflow
from perdure.admin import RunningStep, Wait, WaitKind
from perdure.blocking import Engine as BlockingEngine
from perdure.core.model.waits import NAMED_WAITS, waits_to_json
from perdure.core.model.worker_info import NAMED_STEPS, RunningSteps, steps_from_json, steps_to_json
from perdure.dashboard.figures import overview_figures
from tests.helpers import eventually
from tests.stage import Stage, until
from tests.worker.crowd import Crowd
from tests.workflow.crunching import lingers

#: Heartbeats often enough for a test that waits for one.
LEASE = "2s"


async def waits_of(run: Handle[Any]) -> list[tuple[WaitKind, str]]:
    found = (await run.report()).waits
    assert found is not None
    return [(wait.kind, wait.name) for wait in found.waits]


@workflow("visible.child.v1")
async def child(ctx: Context) -> str:
    return await ctx.receive("word", str)


async def test_a_run_that_waits_for_a_message_says_for_which_since_when_and_until_when(stage: Stage) -> None:
    @workflow("visible.approval.v1")
    async def approval(ctx: Context) -> str:
        return await ctx.receive("approval", str, timeout="3d")

    engine = stage.engine(approval)
    async with engine.worker():
        run = await engine.start(approval())
        await until(run, Status.WAITING)
        told = await run.why()
        day = r"(Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC"
        assert re.fullmatch(
            rf"It waits for message 'approval' since {day}, at most until {day} \(in [23] d( \d+ h)?\)\.", told
        )
        [wait] = (await run.report()).waits.waits  # type: ignore[union-attr] # it is parked
        before = await run.info()
        assert before.started_at <= wait.since < wait.until == before.wake_at
        # Another message wakes the run; the receive goes on.
        await run.send("aproval", "yes")
        await eventually(lambda: _is_parked_again(run, before.token))
        [after] = (await run.report()).waits.waits  # type: ignore[union-attr] # it is parked
        assert after == wait


async def _is_parked_again(run: Handle[Any], token: int) -> bool:
    row = await run.info()
    return row.status is Status.WAITING and row.token > token


async def test_a_run_that_waits_for_several_things_names_all_of_them(stage: Stage) -> None:
    @workflow("visible.several.v1")
    async def several(ctx: Context) -> None:
        calling = ctx.call(child())
        receiving = ctx.receive("approval", str)
        sleeping = ctx.sleep("2d")
        await asyncio.gather(calling, receiving, sleeping)

    engine = stage.engine(several, child)
    async with engine.worker():
        run = await engine.start(several(), id="parent")
        await until(run, Status.WAITING)
        named = [
            (WaitKind.MESSAGE, "approval"), (WaitKind.CHILD, "parent/visible.child.v1"), (WaitKind.TIMER, "sleep"),
        ]  # fmt: skip
        assert await waits_of(run) == named
        why = await run.why()
        assert "message 'approval' since" in why
        assert "child 'parent/visible.child.v1' (visible.child.v1) since" in why
        assert "timer 'sleep' until" in why
        await run.send("approval", "yes")
        await eventually(lambda: _waits_for(run, named[1:]))
        assert "Of the child 'parent/visible.child.v1': It waits for message 'word'" in await run.why()


async def _waits_for(run: Handle[Any], named: list[tuple[WaitKind, str]]) -> bool:
    found = (await run.report()).waits
    return found is not None and [(wait.kind, wait.name) for wait in found.waits] == named


async def test_of_very_many_waits_some_are_named_and_all_are_counted(stage: Stage) -> None:
    @workflow("visible.many.v1")
    async def many(ctx: Context) -> None:
        await asyncio.gather(*[ctx.receive(f"word-{number}", str, timeout="1d") for number in range(50)])

    engine = stage.engine(many)
    async with engine.worker():
        run = await engine.start(many())
        await until(run, Status.WAITING)
        found = (await run.report()).waits
        assert found is not None
        assert (len(found.waits), found.more) == (NAMED_WAITS, 50 - NAMED_WAITS)
        assert "; 42 more." in await run.why()


async def test_a_step_that_a_limit_holds_back_names_the_limit(stage: Stage) -> None:
    crowd = Crowd()

    @step(limit=Limit("carrier", concurrency=1))
    async def ship(name: str) -> str:
        return await crowd.visit(name)

    @workflow("visible.limited.v1")
    async def limited(ctx: Context, name: str) -> None:
        await asyncio.gather(ctx.step(ship, name), ctx.sleep("1d"))

    engine = stage.engine(limited)
    async with engine.worker():
        first = await engine.start(limited("a"))
        await eventually(lambda: crowd.inside == ["a"])
        second = await engine.start(limited("b"))
        await eventually(lambda: _waits_for(second, [(WaitKind.LIMIT, "carrier"), (WaitKind.TIMER, "sleep")]))
        assert "limit 'carrier', which holds back step 'ship' since" in await second.why()
        crowd.let_out()
        for run in (first, second):
            await eventually(lambda run=run: _waits_for(run, [(WaitKind.TIMER, "sleep")]))  # type: ignore[misc] # mypy infers no type for the default of a lambda


async def test_a_step_that_is_tried_again_later_is_named(stage: Stage) -> None:
    @step(retry=Retry.fixed("1h", attempts=3))
    async def fails() -> None:
        raise LookupError("not yet")

    @workflow("visible.retried.v1")
    async def retried(ctx: Context) -> None:
        await asyncio.gather(ctx.step(fails), ctx.receive("stop", str))

    engine = stage.engine(retried)
    async with engine.worker():
        run = await engine.start(retried())
        await eventually(lambda: _waits_for(run, [(WaitKind.MESSAGE, "stop"), (WaitKind.RETRY, "fails")]))
        assert "the next attempt at step 'fails' until" in await run.why()


async def test_waits_of_an_earlier_attempt_at_the_run_are_not_shown(stage: Stage) -> None:
    @workflow("visible.again.v1", retry=Retry.fixed("1h", attempts=3))
    async def again(ctx: Context) -> None:
        await ctx.receive("go", str)
        raise LookupError("not yet")

    engine = stage.engine(again)
    async with engine.worker():
        run = await engine.start(again())
        await until(run, Status.WAITING)
        assert (await run.report()).waits is not None
        await run.send("go", "now")
        await eventually(lambda: _is_retrying(run))
        assert (await run.report()).waits is None
        assert "'go'" not in await run.why()


async def _is_retrying(run: Handle[Any]) -> bool:
    return (await run.info()).reason == "retry"


def test_cells_are_bounded_whatever_the_names() -> None:
    waits = [Wait(kind=WaitKind.MESSAGE, name="x" * 3000) for _ in range(30)]
    assert len(waits_to_json(1, waits, 30)) <= 4000
    long = [
        RunningStep(run_id="r" * 255, type="t", location="l" * 3000, attempt=1, since=n, token=1) for n in range(300)
    ]
    text = steps_to_json(long)
    assert text is not None
    assert len(text) <= 32_000
    short = [RunningStep(run_id=f"r{n}", type="t", location="l", attempt=1, since=n, token=1) for n in range(300)]
    found = steps_from_json(steps_to_json(list(reversed(short))))
    assert [one.since for one in found.steps] == list(range(NAMED_STEPS))
    assert found.more == 300 - NAMED_STEPS
    assert steps_from_json("[broken").steps == ()


# what is under way


async def _has_running(engine: Engine, run: Handle[Any], *locations: str) -> bool:
    report = await run.report()
    listed = [one.location for worker in await engine.workers.list() for one in worker.running.steps]
    return [one.location for one in report.running] == list(locations) and set(locations) <= set(listed)


@pytest.mark.parametrize("how", ["loop", "thread", "transaction"])
async def test_a_step_under_way_is_named_until_it_ends(stage: Stage, how: str) -> None:
    entered, go_on = threading.Event(), threading.Event()

    async def in_loop() -> str:
        entered.set()
        await eventually(go_on.is_set)
        return how

    def in_thread() -> str:
        entered.set()
        go_on.wait(60)
        return how

    async def in_transaction(connection: Any) -> str:
        return in_thread() if stage.url.startswith("sqlite") else await in_loop()

    @workflow("visible.step.v1")
    async def stepping(ctx: Context) -> str:
        if how == "transaction":
            return await ctx.transaction(in_transaction)
        return await ctx.step(in_loop if how == "loop" else in_thread)

    engine = stage.engine(stepping)
    name = {"loop": "in_loop", "thread": "in_thread", "transaction": "in_transaction"}[how]
    async with engine.worker(lease=LEASE) as worker:
        run = await engine.start(stepping(), id="one")
        await eventually(entered.is_set)
        if how == "transaction" and stage.url.startswith("sqlite"):
            # Nothing else is written to SQLite meanwhile, heartbeats included.
            go_on.set()
            assert await run.result("20s") == how
            return
        await eventually(lambda: _has_running(engine, run, name))
        assert f"{worker.id} (pid" in await run.why()
        assert re.search(rf"Under way at its last heartbeat: '{name}' for \d+ s\.", await run.why())
        go_on.set()
        assert await run.result("20s") == how
        assert (await run.report()).running == ()
        await eventually(lambda: _nothing_runs(engine))


async def _nothing_runs(engine: Engine) -> bool:
    return all(worker.running.steps == () for worker in await engine.workers.list())


async def test_a_step_in_a_process_is_named(stage: Stage, tmp_path: Any) -> None:
    marker = tmp_path / "marker"

    @workflow("visible.process.v1")
    async def processing(ctx: Context) -> None:
        await ctx.options(process=True).step(lingers, str(marker))

    engine = stage.engine(processing)
    async with engine.worker(lease=LEASE, step_processes=1):
        run = await engine.start(processing())
        await eventually(lambda: _has_running(engine, run, "lingers"))
        await run.cancel()
        await until(run, Status.CANCELLED)


async def test_an_activity_under_way_is_named_with_its_last_heartbeat(stage: Stage) -> None:
    entered, go_on = asyncio.Event(), asyncio.Event()

    @activity("visible.activity.v1")
    async def acting() -> str:
        entered.set()
        while not go_on.is_set():
            await asyncio.sleep(0.01)
            activity_info().heartbeat()
        return "done"

    engine = stage.engine(acting)
    async with engine.worker(lease=LEASE):
        run = await engine.start(acting())
        await entered.wait()
        await eventually(lambda: _has_running(engine, run, "visible.activity.v1"))
        [one] = (await run.report()).running
        assert one.attempt == 1
        assert one.heartbeat_at > one.since
        assert "'visible.activity.v1' for " in await run.why()
        assert ", last heartbeat " in await run.why()
        go_on.set()
        assert await run.result("20s") == "done"


def test_a_blocking_program_sees_the_same(tmp_path: Any) -> None:
    @workflow("visible.blocking.v1")
    async def waiting(ctx: Context) -> str:
        return await ctx.receive("approval", str)

    with BlockingEngine(f"sqlite:///{tmp_path}/runs.db", [waiting]) as engine, engine.worker():
        run = engine.start(waiting())
        while run.status() is not Status.WAITING:
            pass
        found = run.report().waits
        assert found is not None
        assert [(wait.kind, wait.name) for wait in found.waits] == [("message", "approval")]
        assert "It waits for message 'approval' since" in run.why()
        [worker] = engine.workers.list()
        assert worker.running.steps == ()
        assert worker.taken_over_in is None


async def test_a_worker_reports_how_long_its_commits_take_and_the_overview_shows_the_slowest(on_disk: Stage) -> None:
    @workflow("visible.quick.v1")
    async def quick(ctx: Context) -> int:
        return 1

    engine = on_disk.engine(quick)
    async with engine.worker(lease=LEASE):
        assert await (await engine.start(quick())).result("60s") == 1

        async def reported() -> bool:
            [worker] = await engine.workers.list()
            return worker.running.commit_p99 > 0

        await eventually(reported, saying="a heartbeat with the time of a commit")
        [worker] = await engine.workers.list()
        slower = replace(worker, running=RunningSteps(commit_p99=4_200_000))
        notes = [one.note for one in overview_figures([], [worker, slower], 0, worker.heartbeat_at)]
        assert "2 workers alive, commit p99 4.2 s" in notes
