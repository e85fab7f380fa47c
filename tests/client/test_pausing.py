"""Pausing runs, types and queues."""

from __future__ import annotations

import asyncio
import json

import pytest

from perdure import Context, RunCancelled, RunFailed, RunNotFound, Status, UsageError, workflow
from perdure.admin import Reason, RecordKind
from perdure.testing import Environment
from tests.helpers import eventually
from tests.stage import Stage, until, until_recorded


@workflow("pause.listen.v1")
async def listening(ctx: Context) -> list[str]:
    return [await ctx.receive("word", str), await ctx.receive("word", str)]


@workflow("pause.quick.v1")
async def quick(ctx: Context) -> str:
    return "done"


async def until_paused(stage: Stage, run_id: str) -> None:
    async def paused() -> bool:
        return await stage.rows("SELECT reason FROM perdure_runs WHERE id = ?", run_id) == [("paused",)]

    await eventually(paused, saying=f"{run_id} being paused")


async def test_a_paused_run_keeps_its_messages_for_later(stage: Stage) -> None:
    engine = stage.engine(listening)
    async with engine.worker():
        run = await engine.start(listening())
        await until(run, Status.WAITING)
        assert await run.pause("maintenance")
        assert not await run.pause("again")
        await run.send("word", "one")
        await run.send("word", "two")
        assert (await run.info()).reason is Reason.PAUSED
        assert "maintenance" in await run.why()
        assert await run.history() == []
        assert await run.resume()
        assert not await run.resume()
        assert await run.result("20s") == ["one", "two"]
        assert await run.inbox() == []
        assert [record.kind for record in await run.history()] == [RecordKind.MESSAGE] * 2


async def test_a_paused_run_stays_so_when_its_worker_goes(stage: Stage) -> None:
    engine = stage.engine(listening)
    run = await engine.start(listening())
    async with engine.worker():
        await until(run, Status.WAITING)
        await run.pause()
        await run.send("word", "one")
    async with engine.worker():
        await run.send("word", "two")
        assert (await run.info()).reason is Reason.PAUSED
    await run.resume()
    async with engine.worker():
        assert await run.result("20s") == ["one", "two"]


async def test_a_running_run_ends_the_steps_that_are_under_way_and_then_waits(stage: Stage) -> None:
    begun: list[int] = []
    ended: list[int] = []

    async def tick(number: int) -> None:
        begun.append(number)
        await asyncio.sleep(0.002)
        ended.append(number)

    @workflow("pause.steps.v1")
    async def stepping(ctx: Context) -> None:
        for number in range(1_000_000):
            await asyncio.gather(ctx.step(tick, number), ctx.step(tick, -number))

    engine = stage.engine(stepping)
    async with engine.worker():
        run = await engine.start(stepping(), id="r")
        await until_recorded(run, 2)
        assert await run.pause()
        await until_paused(stage, "r")
        assert begun == ended
        count = len(await run.history())
        assert count == len(ended)
        await run.resume()
        await until_recorded(run, count + 2)
        await run.cancel()
        with pytest.raises(RunCancelled):
            await run.result("20s")


async def test_a_pause_that_a_worker_was_told_of_outlives_that_worker(stage: Stage) -> None:
    entered = asyncio.Event()

    async def hold() -> None:
        entered.set()
        await asyncio.Event().wait()

    @workflow("pause.dying.v1")
    async def dying(ctx: Context) -> None:
        await ctx.step(hold)

    engine = stage.engine(dying)
    run = await engine.start(dying(), id="r")
    async with engine.worker(grace="1ms"):
        await entered.wait()
        await run.pause()
    assert await run.status() in (Status.PENDING, Status.WAITING)
    entered.clear()
    async with engine.worker():
        await until_paused(stage, "r")
    assert not entered.is_set()


async def test_a_run_paused_before_it_starts_does_not_start(stage: Stage) -> None:
    engine = stage.engine(quick)
    run = await engine.start(quick(), id="r")
    later = await engine.start(quick(), at="1h")
    due = (await later.info()).wake_at
    assert await run.pause()
    assert await later.pause()
    async with engine.worker():
        assert await (await engine.start(quick())).result("20s") == "done"
        assert (await run.info()).reason is Reason.PAUSED
        await run.resume()
        assert await run.result("20s") == "done"
        # Its pause is over, its time has not come.
        await later.resume()
        assert ((await later.info()).reason, (await later.info()).wake_at) == (Reason.TIMER, due)


async def test_a_paused_run_is_cancelled_all_the_same(stage: Stage) -> None:
    done: list[str] = []

    async def refund() -> None:
        done.append("refund")

    @workflow("pause.cleanup.v1")
    async def cleaning(ctx: Context) -> None:
        try:
            await ctx.receive("never")
        finally:
            await ctx.step(refund)

    engine = stage.engine(cleaning)
    async with engine.worker():
        run = await engine.start(cleaning())
        await until(run, Status.WAITING)
        await run.pause()
        await run.cancel("enough")
        with pytest.raises(RunCancelled, match="enough"):
            await run.result("20s")
    assert done == ["refund"]


async def test_a_paused_run_that_never_started_is_cancelled_at_once(stage: Stage) -> None:
    engine = stage.engine(quick)
    run = await engine.start(quick())
    await run.pause()
    await run.cancel()
    assert await run.status() is Status.CANCELLED


async def test_timers_of_a_paused_run_wait_and_its_deadline_does_not() -> None:
    @workflow("pause.sleep.v1")
    async def sleeping(ctx: Context) -> str:
        await ctx.sleep("1h")
        return ctx.now().isoformat()

    async with Environment([sleeping]) as env:
        run = await env.start(sleeping())
        doomed = await env.start(sleeping(), deadline="5h")
        await env.settle()
        begun = env.now
        await run.pause()
        await doomed.pause()
        await env.advance("3h")
        assert (await run.info()).reason is Reason.PAUSED
        await run.resume()
        assert await run.result() == env.now.isoformat()
        assert (env.now - begun).total_seconds() == 3 * 3600
        await env.advance("3h")
        with pytest.raises(RunFailed, match="Expired"):
            await doomed.result()


async def test_pausing_and_resuming_in_quick_succession_loses_nothing(stage: Stage) -> None:
    engine = stage.engine(listening)
    async with engine.worker():
        runs = await engine.start_many([listening() for _ in range(10)])
        for count in range(3):
            await asyncio.gather(*(run.pause() for run in runs))
            if count:
                await asyncio.gather(*(run.send("word", str(count)) for run in runs))
            await asyncio.gather(*(run.resume() for run in runs))
        for run in runs:
            assert await run.result("20s") == ["1", "2"]


async def test_a_finished_run_is_not_paused(stage: Stage) -> None:
    engine = stage.engine(quick)
    async with engine.worker():
        run = await engine.start(quick())
        await run.result("20s")
    assert not await run.pause()
    assert not await run.resume()


async def test_what_is_to_be_paused_is_named_once(on_disk: Stage) -> None:
    engine = on_disk.engine(quick)
    with pytest.raises(RunNotFound, match="'missing'"):
        await engine.runs.pause("missing")
    for wrong in ({}, {"type": "a", "queue": "b"}, {"queue": "a/b"}, {"type": ""}):
        with pytest.raises(UsageError):
            await engine.queues.pause(**wrong)
        with pytest.raises(UsageError):
            await engine.queues.resume(**wrong)
    assert await engine.queues.paused() == []


@pytest.mark.parametrize("what", [{"type": "pause.quick.v1"}, {"queue": "slow"}])
async def test_a_paused_type_or_queue_is_not_worked_on(stage: Stage, what: dict[str, str]) -> None:
    engine = stage.engine(quick, listening)
    async with engine.worker(queues=["default", "slow"]):
        assert await engine.queues.pause(**what, reason="the printer is broken")
        assert not await engine.queues.pause(**what)
        [pause] = await engine.queues.paused()
        assert (pause.name, pause.reason) == (next(iter(what.values())), "the printer is broken")
        run = await engine.start(quick(), queue="slow")
        other = await engine.start(listening())
        await until(other, Status.WAITING)
        assert await run.status() is Status.PENDING
        assert "printer" in await run.why()
        assert await engine.queues.resume(**what)
        assert not await engine.queues.resume(**what)
        assert await run.result("20s") == "done"


async def test_a_run_that_waits_is_not_taken_up_while_its_type_is_paused(stage: Stage) -> None:
    engine = stage.engine(listening, quick)
    async with engine.worker():
        run = await engine.start(listening())
        await until(run, Status.WAITING)
        await engine.queues.pause(type="pause.listen.v1")
        await run.send("word", "one")
        await (await engine.start(quick())).result("20s")
        assert await run.status() is Status.PENDING
        await engine.queues.resume(type="pause.listen.v1")
        await until_recorded(run, 1)


@workflow("pause.sleep.v1")
async def sleeping(ctx: Context) -> None:
    await ctx.sleep("1h")
    await ctx.receive("word", str)
    raise LookupError


async def test_the_audit_trail_keeps_the_reason_of_every_order(stage: Stage) -> None:
    engine = stage.engine(sleeping)
    async with engine.worker():
        run = await engine.start(sleeping())
        await until(run, Status.WAITING)
        await run.pause("lunch")
        await run.resume("back")
        await until(run, Status.WAITING)
        await run.wake(reason="enough")
        await run.send("word", "go", reason="asked by Ada")
        with pytest.raises(RunFailed):
            await run.result("20s")
        fork = await run.fork(reason="try again elsewhere")
        await run.retry(reason="the door is open")
        await engine.queues.pause(queue="nowhere", reason="stocktaking")
        await engine.queues.resume(queue="nowhere", reason="counted")
    trail = [event for one in (run.id, fork.id, "queue:nowhere") for event in (await engine.audit.list(run=one)).events]
    told = {event.kind: reason for event in trail if (reason := json.loads(event.data).get("reason"))}
    assert told == {
        "paused": "lunch", "resumed": "back", "woken": "enough", "sent": "asked by Ada", "reopened": "the door is open",
        "forked": "try again elsewhere", "queue_paused": "stocktaking", "queue_resumed": "counted",
    }  # fmt: skip
