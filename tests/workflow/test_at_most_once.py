"""Steps that must not run twice: their beginning is durable before they are executed."""

from __future__ import annotations

import asyncio

import pytest

from perdure import (
    Break,
    Context,
    Continue,
    Engine,
    Handle,
    Retry,
    RunFailed,
    Status,
    UsageError,
    step,
    step_info,
    workflow,
)
from perdure.core.model.record import RecordKind
from perdure.core.model.run import Reason
from perdure.errors import StepInterrupted
from tests.helpers import eventually
from tests.stage import Stage, until
from tests.worker.test_interruptions import LEASE, declare_dead


class Work:
    """Steps that count their executions, and wait for the test where it says so."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.go_on = asyncio.Event()

    async def charge(self, name: str = "charge") -> str:
        self.calls.append(name)
        await self.go_on.wait()
        return f"{name} {step_info().attempt}"

    async def quick(self, name: str = "quick") -> str:
        self.calls.append(name)
        return name

    async def fails(self) -> str:
        self.calls.append("fails")
        if len(self.calls) == 1:
            raise OSError("no connection")
        return f"attempt {step_info().attempt}"


async def kinds(run: Handle[object]) -> list[tuple[str, str]]:
    return [(record.kind.value, record.location) for record in await run.history()]


async def test_its_beginning_is_recorded_before_it_is_executed(stage: Stage) -> None:
    work = Work()

    @workflow("once.flow.v1")
    async def flow(ctx: Context) -> list[str]:
        once = ctx.options(at_most_once=True)
        return [await ctx.step(work.quick), await once.step(work.charge), await ctx.step(work.quick, "after")]

    engine = stage.engine(flow)
    async with engine.worker():
        run = await engine.start(flow())
        await eventually(lambda: "charge" in work.calls, saying="the step being executed")
        begun = (await run.history())[-1]
        assert (begun.kind, begun.location, begun.attempts) == (RecordKind.BEGIN, "Work.charge", 1)
        [_, report] = (await run.report()).steps
        assert (report.location, report.status, report.duration) == ("Work.charge", "begun", 0.0)
        work.go_on.set()
        assert await run.result("20s") == ["quick", "charge 1", "after"]
    assert await kinds(run) == [
        ("step", "Work.quick"),
        ("begin", "Work.charge"),
        ("step", "Work.charge"),
        ("step", "Work.quick#2"),
    ]


async def test_a_worker_that_is_lost_while_it_is_executed_leaves_it_interrupted(stage: Stage) -> None:
    work = Work()

    @step(at_most_once=True, name="charge")
    async def charge() -> str:
        return await work.charge()

    @workflow("once.lost.v1")
    async def flow(ctx: Context) -> list[str]:
        try:
            return [await ctx.step(charge)]
        except StepInterrupted as error:
            return [error.location, await ctx.step(work.quick, "asked the bank")]

    engine = stage.engine(flow)
    async with engine.worker(lease=LEASE) as worker:
        run = await engine.start(flow())
        await eventually(lambda: bool(work.calls), saying="the step being executed")
        await declare_dead(stage, worker)
        assert await run.result("20s") == ["charge", "asked the bank"]
    assert work.calls == ["charge", "asked the bank"]
    found = await run.history()
    assert [(record.kind.value, record.failed) for record in found] == [
        ("begin", False),
        ("step", True),
        ("step", False),
    ]
    [charged, _] = (await run.report()).steps
    assert (charged.status, charged.attempts) == ("failed", 1)
    assert "not executed again" in charged.errors[0].message


async def test_an_interrupted_step_that_nothing_catches_fails_the_run_and_stays_interrupted_when_it_is_retried(
    stage: Stage,
) -> None:
    work = Work()
    decided = False

    @workflow("once.retried.v1", retry=Retry(attempts=2, initial=0.01))
    async def flow(ctx: Context) -> str:
        await ctx.step(work.quick)
        try:
            return await ctx.options(at_most_once=True).step(work.charge)
        except StepInterrupted:
            if not decided:
                raise
            return "decided"

    engine = stage.engine(flow)
    async with engine.worker(lease=LEASE) as worker:
        run = await engine.start(flow())
        await eventually(lambda: "charge" in work.calls, saying="the step being executed")
        await declare_dead(stage, worker)
        # The second attempt of the workflow's own policy does not execute it, and a retry by hand does not either.
        with pytest.raises(RunFailed, match="StepInterrupted"):
            await run.result("20s")
        decided = True
        await run.retry()
        assert await run.result("20s") == "decided"
    assert work.calls == ["quick", "charge"]


async def test_a_fork_executes_an_interrupted_step(stage: Stage) -> None:
    work = Work()

    @workflow("once.forked.v1")
    async def flow(ctx: Context) -> str:
        await ctx.step(work.quick)
        return await ctx.options(at_most_once=True).step(work.charge)

    engine = stage.engine(flow)
    async with engine.worker(lease=LEASE) as worker:
        run = await engine.start(flow())
        await eventually(lambda: "charge" in work.calls, saying="the step being executed")
        await declare_dead(stage, worker)
        with pytest.raises(RunFailed, match="StepInterrupted"):
            await run.result("20s")
        work.go_on.set()
        fork = await run.fork(from_step="Work.charge")
        assert await fork.result("20s") == "charge 1"
    assert work.calls == ["quick", "charge", "charge"]


async def test_a_fork_after_it_copies_its_beginning_and_its_end(stage: Stage) -> None:
    work = Work()
    work.go_on.set()

    @workflow("once.copied.v1")
    async def flow(ctx: Context) -> list[str]:
        return [await ctx.options(at_most_once=True).step(work.charge), await ctx.step(work.quick)]

    engine = stage.engine(flow)
    async with engine.worker():
        run = await engine.start(flow())
        assert await run.result("20s") == ["charge 1", "quick"]
        fork = await run.fork(from_step="Work.quick")
        assert await fork.result("20s") == ["charge 1", "quick"]
    assert work.calls == ["charge", "quick", "quick"]


async def test_it_is_retried_after_an_error_only_if_it_has_a_policy_of_its_own(stage: Stage) -> None:
    work = Work()

    @workflow("once.failing.v1")
    async def flow(ctx: Context, attempts: int | None) -> str:
        retry = None if attempts is None else Retry(attempts=attempts, initial=0.01)
        return await ctx.options(at_most_once=True, retry=retry).step(work.fails)

    engine = stage.engine(flow)
    async with engine.worker(retry=Retry(attempts=5, initial=0.01)):
        run = await engine.start(flow(None))
        with pytest.raises(RunFailed, match="no connection"):
            await run.result("20s")
        assert await kinds(run) == [("begin", "Work.fails"), ("step", "Work.fails")]
        work.calls.clear()
        run = await engine.start(flow(3))
        assert await run.result("20s") == "attempt 2"
    assert [kind for kind, _ in await kinds(run)] == ["begin", "attempt", "begin", "step"]


async def test_a_crash_before_the_next_attempt_is_no_interruption(stage: Stage) -> None:
    work = Work()

    @workflow("once.between.v1")
    async def flow(ctx: Context) -> str:
        return await ctx.options(at_most_once=True, retry=Retry.fixed("1h")).step(work.fails)

    engine = stage.engine(flow)
    async with engine.worker():
        run = await engine.start(flow())
        await until(run, Status.WAITING)
        await run.evict()
        await run.retry()
        assert await run.result("20s") == "attempt 1"
    assert [kind for kind, _ in await kinds(run)] == ["begin", "attempt", "begin", "step"]


async def test_steps_in_parallel_are_each_executed_at_most_once(stage: Stage) -> None:
    work = Work()

    @workflow("once.parallel.v1")
    async def flow(ctx: Context) -> list[str]:
        once = ctx.options(at_most_once=True)
        ended = await asyncio.gather(
            *(once.options(name=name).step(work.charge, name) for name in "abc"),
            ctx.step(work.quick),
            return_exceptions=True,
        )
        return [type(one).__name__ if isinstance(one, Exception) else str(one) for one in ended]

    engine = stage.engine(flow)
    async with engine.worker(lease=LEASE) as worker:
        run = await engine.start(flow())
        await eventually(lambda: len(work.calls) == 4, saying="all steps being executed")

        async def recorded() -> bool:
            return ("step", "Work.quick") in await kinds(run)

        await eventually(recorded, saying="the record of the quick step")
        await declare_dead(stage, worker)
        assert await run.result("20s") == ["StepInterrupted"] * 3 + ["quick"]
    assert sorted(work.calls) == ["a", "b", "c", "quick"]


async def test_a_worker_that_stops_waits_for_it(stage: Stage) -> None:
    work = Work()

    @workflow("once.drained.v1")
    async def flow(ctx: Context) -> str:
        return await ctx.options(at_most_once=True).step(work.charge)

    engine = stage.engine(flow)
    async with engine.worker(grace=20):
        run = await engine.start(flow())
        await eventually(lambda: bool(work.calls), saying="the step being executed")
        asyncio.get_running_loop().call_later(0.2, work.go_on.set)
    async with engine.worker():
        assert await run.result("20s") == "charge 1"
    assert work.calls == ["charge"]


async def test_a_worker_that_does_not_wait_for_it_leaves_it_interrupted(stage: Stage) -> None:
    work = Work()

    @workflow("once.stopped.v1")
    async def flow(ctx: Context) -> str:
        try:
            return await ctx.options(at_most_once=True).step(work.charge)
        except StepInterrupted:
            return "interrupted"

    engine = stage.engine(flow)
    async with engine.worker(grace=0):
        run = await engine.start(flow())
        await eventually(lambda: bool(work.calls), saying="the step being executed")
    async with engine.worker():
        assert await run.result("20s") == "interrupted"
    assert work.calls == ["charge"]


async def test_a_pause_waits_for_it(stage: Stage) -> None:
    work = Work()

    @workflow("once.paused.v1")
    async def flow(ctx: Context) -> list[str]:
        return [await ctx.options(at_most_once=True).step(work.charge), await ctx.receive("go on", str)]

    async def is_paused() -> bool:
        return (await run.info()).reason == Reason.PAUSED

    engine = stage.engine(flow)
    async with engine.worker():
        run = await engine.start(flow())
        await eventually(lambda: bool(work.calls), saying="the step being executed")
        await run.pause()
        work.go_on.set()
        await eventually(is_paused, saying="the run being paused")
        assert [record.location for record in await run.history() if record.kind is RecordKind.STEP] == ["Work.charge"]
        await run.resume()
        await run.send("go on", "quick")
        assert await run.result("60s") == ["charge 1", "quick"]
    assert work.calls == ["charge"]


async def test_a_step_that_the_workflow_gave_up_is_not_interrupted_later(stage: Stage) -> None:
    work = Work()

    @workflow("once.given_up.v1")
    async def flow(ctx: Context) -> str:
        try:
            async with asyncio.timeout(0.05):
                await ctx.options(at_most_once=True).step(work.charge)
        except TimeoutError:
            return await ctx.receive("go on", str)
        return "impossible"

    engine = stage.engine(flow)
    async with engine.worker():
        run = await engine.start(flow())
        await until(run, Status.WAITING)
        await run.evict()
        await run.send("go on", "gave up")
        assert await run.result("20s") == "gave up"
    assert work.calls == ["charge"]


async def test_it_runs_in_loops_whose_history_is_trimmed(stage: Stage) -> None:
    work = Work()
    work.go_on.set()

    @workflow("once.loop.v1")
    async def flow(ctx: Context) -> str:
        async def turn(ctx: Context, number: int) -> Continue[int] | Break[str]:
            await ctx.options(at_most_once=True).step(work.charge)
            return Continue(number + 1) if number < 4 else Break("done")

        return await ctx.loop(0, turn, name="turns", commit_every=1)

    engine = stage.engine(flow)
    async with engine.worker():
        run = await engine.start(flow())
        assert await run.result("20s") == "done"
    assert len(work.calls) == 5
    assert [kind for kind, _ in await kinds(run)] == ["scope"]


@pytest.mark.parametrize("kind", ["transaction", "ephemeral"])
async def test_it_is_neither_a_transaction_nor_ephemeral(stage: Stage, kind: str) -> None:
    work = Work()

    @workflow(f"once.{kind}.v1")
    async def flow(ctx: Context) -> None:
        if kind == "transaction":
            await ctx.options(at_most_once=True).transaction(work.quick)
        else:
            await ctx.options(at_most_once=True, ephemeral=True).step(work.quick)

    engine = stage.engine(flow)
    async with engine.worker():
        run = await engine.start(flow())
        with pytest.raises(RunFailed, match=f"at_most_once=True and .*{kind}"):
            await run.result("20s")


def test_the_option_is_a_flag() -> None:
    with pytest.raises(UsageError, match="at_most_once"):
        step(at_most_once="yes")  # type: ignore[call-overload] # the mistake that is tested


async def test_other_steps_cost_one_row_each(stage: Stage) -> None:
    work = Work()

    @workflow("once.usual.v1")
    async def flow(ctx: Context) -> None:
        for _ in range(3):
            await ctx.step(work.quick)
        await ctx.options(at_most_once=False).step(work.quick)

    engine: Engine = stage.engine(flow)
    async with engine.worker():
        run = await engine.start(flow())
        await run.result("20s")
    assert [kind for kind, _ in await kinds(run)] == ["step"] * 4
