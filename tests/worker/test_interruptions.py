"""Attempts that end with the worker that made them: counted, and reported."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure import (
    Context,
    Engine,
    Handle,
    Retry,
    RunFailed,
    Status,
    activity,
    activity_info,
    step,
    step_info,
    workflow,
)
from perdure.client.workers import EngineWorker
from perdure.core.model.outputs import Interruption
from perdure.core.model.record import Record, RecordKind
from perdure.worker.run.interrupted_steps import count_interrupted_activity_attempts
from tests.helpers import eventually
from tests.stage import Stage

#: Of the workers here: they die only when the test says so.
LEASE = "1h"

_OVERDUE = "UPDATE perdure_workers SET heartbeat_at = 0 WHERE status = 'alive'"


async def declare_dead(stage: Stage, worker: EngineWorker) -> None:
    """Have a sweep find the worker overdue, as after a SIGKILL. It begins again under another id."""
    assert stage.store is not None

    async def overdue(tx: Any) -> None:
        await tx.execute(_OVERDUE, {})

    await stage.store._write("test", "", overdue)
    await stage.store.sweep(100)
    # It would learn of it by its next heartbeat. With a lease so short that this is soon, it dies whenever the machine
    # stops for a while.
    assert worker._worker is not None
    assert worker._worker._heartbeat is not None
    await worker._worker._heartbeat.renew()


class Work:
    """Steps that say which attempt they are, and wait for the test."""

    def __init__(self) -> None:
        self.attempts: list[tuple[str, int]] = []
        self.go_on = asyncio.Event()

    async def waits(self, name: str = "waits") -> int:
        attempt = step_info().attempt
        self.attempts.append((name, attempt))
        await self.go_on.wait()
        return attempt

    async def quick(self, name: str = "quick") -> int:
        self.attempts.append((name, step_info().attempt))
        return step_info().attempt


async def worker_of(engine: Engine) -> str:
    [alive] = [worker.id for worker in await engine.workers.list() if worker.status == "alive"]
    return alive


async def until_tried(work: Work, count: int) -> None:
    await eventually(lambda: len(work.attempts) >= count, saying=f"{count} attempts")


@pytest.mark.parametrize(
    ("retry_at", "last", "steps", "count"),
    [(10, 0, None, 1), (11, 0, None, 0), (11, 0, ("act",), 1), (11, -1, None, 1)],
    ids=["when the next attempt was due", "before that", "of a step that is known", "before the attempt failed"],
)
def test_an_interruption_counts_if_an_attempt_at_the_activity_may_have_been_under_way(
    retry_at: int, last: int, steps: tuple[str, ...] | None, count: int
) -> None:
    found = Interruption(at=10, worker="w1", reason="lost", generation=1, attempt=1, last=last, steps=steps)
    failed = Record(seq=0, kind=RecordKind.ATTEMPT, location="act", payload=None, at=5, retry_at=retry_at)
    assert count_interrupted_activity_attempts([found], failed) == count


async def test_an_attempt_that_its_worker_did_not_survive_is_counted_and_reported(stage: Stage) -> None:
    work = Work()

    @workflow("interrupted.flow.v1")
    async def flow(ctx: Context) -> list[int]:
        return [await ctx.step(work.quick), await ctx.step(work.waits), await ctx.step(work.quick)]

    engine = stage.engine(flow)
    async with engine.worker(lease=LEASE) as worker:
        run = await engine.start(flow())
        lost: list[str] = []
        for count in (2, 3):
            await until_tried(work, count)
            lost.append(await worker_of(engine))
            await declare_dead(stage, worker)
        await until_tried(work, 4)
        work.go_on.set()
        assert await run.result("60s") == [1, 3, 1]
    assert work.attempts == [("quick", 1), ("waits", 1), ("waits", 2), ("waits", 3), ("quick", 1)]
    assert [record.attempts for record in await run.history()] == [1, 3, 1]
    report = await run.report()
    assert [one.worker for one in report.interruptions] == lost
    assert all(one.reason == "lost" and one.at > 0 for one in report.interruptions)
    [before, waits, after] = report.steps
    assert (waits.attempts, waits.interruptions) == (3, report.interruptions)
    assert before.interruptions == after.interruptions == ()


async def test_an_interruption_uses_up_no_attempt_of_the_retry_policy(stage: Stage) -> None:
    work = Work()

    @step(retry=Retry.fixed("1ms", attempts=2))
    async def fails() -> None:
        await work.waits()
        raise ConnectionError(f"attempt {step_info().attempt}")

    @workflow("interrupted.policy.v1")
    async def flow(ctx: Context) -> None:
        await ctx.step(fails)

    engine = stage.engine(flow)
    async with engine.worker(lease=LEASE) as worker:
        run = await engine.start(flow())
        await until_tried(work, 1)
        await declare_dead(stage, worker)
        await until_tried(work, 2)
        work.go_on.set()
        with pytest.raises(RunFailed):
            await run.result("60s")
    assert [attempt for _, attempt in work.attempts] == [1, 2, 3]
    [found] = (await run.report()).steps
    assert (found.attempts, len(found.errors), len(found.interruptions)) == (3, 2, 1)


async def test_steps_that_were_asked_for_after_a_death_were_not_interrupted_by_it(stage: Stage) -> None:
    work = Work()

    @workflow("interrupted.parallel.v1")
    async def flow(ctx: Context) -> list[int]:
        async def second() -> int:
            await ctx.receive("go")
            return await ctx.step(work.waits, "second")

        return list(await asyncio.gather(ctx.step(work.waits, "first"), second()))

    engine = stage.engine(flow)
    async with engine.worker(lease=LEASE) as worker:
        run = await engine.start(flow())
        await until_tried(work, 1)
        await declare_dead(stage, worker)
        await until_tried(work, 2)
        await run.send("go")
        await until_tried(work, 3)
        await declare_dead(stage, worker)
        await until_tried(work, 5)
        work.go_on.set()
        assert await run.result("60s") == [3, 2]


async def test_a_worker_that_stops_says_which_attempts_it_interrupted(stage: Stage) -> None:
    work = Work()

    @workflow("interrupted.stopped.v1")
    async def flow(ctx: Context) -> int:
        return await ctx.step(work.waits)

    engine = stage.engine(flow)
    run = await engine.start(flow())
    async with engine.worker(grace=0):
        await until_tried(work, 1)
        stopped = await worker_of(engine)
    async with engine.worker():
        await until_tried(work, 2)
        work.go_on.set()
        assert await run.result("60s") == 2
    [interruption] = (await run.report()).interruptions
    assert (interruption.worker, interruption.reason, interruption.steps) == (stopped, "stopped", ("Work.waits",))


async def test_a_step_that_waited_to_be_tried_again_was_not_interrupted(stage: Stage) -> None:
    work = Work()

    @step(retry=Retry.fixed("3s", attempts=2))
    async def fails() -> int:
        if step_info().attempt == 1:
            raise ConnectionError
        return await work.quick()

    @workflow("interrupted.between.v1")
    async def flow(ctx: Context) -> list[int]:
        return list(await asyncio.gather(ctx.step(fails), ctx.step(work.waits)))

    engine = stage.engine(flow)
    async with engine.worker(lease=LEASE) as worker:
        run = await engine.start(flow())
        await eventually(run.history)
        await declare_dead(stage, worker)
        await until_tried(work, 3)
        work.go_on.set()
        assert await run.result("60s") == [2, 2]


async def test_an_activity_whose_worker_died_is_reported_as_interrupted(stage: Stage) -> None:
    begun: list[int] = []
    go_on = asyncio.Event()

    @activity("interrupted.act.v1")
    async def act() -> int:
        begun.append(activity_info().attempt)
        await go_on.wait()
        return activity_info().attempt

    engine = stage.engine(act)
    async with engine.worker(lease=LEASE) as worker:
        run: Handle[int] = await engine.start(act())
        await eventually(lambda: len(begun) == 1)
        await declare_dead(stage, worker)
        await eventually(lambda: len(begun) == 2)
        go_on.set()
        await run.result("60s")
    report = await run.report()
    assert [one.reason for one in report.interruptions] == ["lost"]


async def test_an_activity_counts_attempts_that_were_interrupted_beside_those_of_its_policy(stage: Stage) -> None:
    tried: list[tuple[int, int | None]] = []
    go_on = asyncio.Event()

    @activity("interrupted.counting.v1", retry=Retry.fixed("1ms", attempts=2))
    async def act() -> None:
        info = activity_info()
        tried.append((info.attempt, info.max_attempts))
        await go_on.wait()
        raise ConnectionError(f"attempt {info.attempt}")

    engine = stage.engine(act)
    async with engine.worker(lease=LEASE) as worker:
        run: Handle[None] = await engine.start(act())
        await eventually(lambda: len(tried) == 1)
        await declare_dead(stage, worker)
        await eventually(lambda: len(tried) == 2)
        await declare_dead(stage, worker)
        await eventually(lambda: len(tried) == 3)
        go_on.set()
        with pytest.raises(RunFailed, match="attempt 4"):
            await run.result("60s")
    assert tried == [(1, 2), (2, 3), (3, 4), (4, 4)]
    assert [record.attempts for record in await run.history()] == [1]


async def test_a_poison_activity_that_is_requeued_counts_its_attempts_from_one(stage: Stage) -> None:
    tried: list[tuple[int, int | None]] = []
    go_on = asyncio.Event()

    @activity("interrupted.poison.v1", retry=Retry.never())
    async def act() -> int:
        info = activity_info()
        tried.append((info.attempt, info.max_attempts))
        await go_on.wait()
        return info.attempt

    async def interrupt(attempt: int) -> None:
        await eventually(lambda: len(tried) == attempt)
        await declare_dead(stage, worker)

    engine = stage.engine(act)
    async with engine.worker(lease=LEASE, poison_after=3) as worker:
        run: Handle[int] = await engine.start(act())
        await interrupt(1)
        await interrupt(2)
        await interrupt(3)

        async def set_aside() -> bool:
            return await run.status() is Status.BLOCKED

        await eventually(set_aside)
        await engine.dead_letters.retry(run.id)
        await interrupt(4)
        await eventually(lambda: len(tried) == 5)
        go_on.set()
        assert await run.result("60s") == 2
    assert tried == [(1, 1), (2, 2), (3, 3), (1, 1), (2, 2)]
    assert len((await run.report()).interruptions) == 4


async def test_an_activity_that_a_stop_interrupted_knows_that_it_was(stage: Stage) -> None:
    tried: list[int] = []
    go_on = asyncio.Event()

    @activity("interrupted.stopping.v1", retry=Retry.never())
    async def act() -> int:
        tried.append(activity_info().attempt)
        await go_on.wait()
        return activity_info().attempt

    engine = stage.engine(act)
    run: Handle[int] = await engine.start(act())
    async with engine.worker(grace=0):
        await eventually(lambda: len(tried) == 1)
    go_on.set()
    async with engine.worker():
        assert await run.result("60s") == 2
    assert tried == [1, 2]


async def test_an_interruption_that_cannot_be_read_stops_nothing(stage: Stage) -> None:
    work = Work()

    @workflow("interrupted.damaged.v1")
    async def flow(ctx: Context) -> int:
        return await ctx.step(work.waits)

    async def damage(tx: Any) -> None:
        await tx.execute("UPDATE perdure_outputs SET payload = '{\"worker\": 1}' WHERE kind = 'takeover'", {})

    engine = stage.engine(flow)
    async with engine.worker(lease=LEASE) as worker:
        run = await engine.start(flow())
        await until_tried(work, 1)
        await declare_dead(stage, worker)
        await until_tried(work, 2)
        assert stage.store is not None
        await stage.store._write("test", "", damage)
        await declare_dead(stage, worker)
        await until_tried(work, 3)
        work.go_on.set()
        assert await run.result("60s") == 2
    assert len((await run.report()).interruptions) == 1
