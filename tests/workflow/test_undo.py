from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from perdure import Context, Retry, Rollback, RunCancelled, RunFailed, Status, step, workflow
from perdure.core.model.run import Reason
from perdure.errors import RunTerminated
from perdure.testing import Environment
from tests.stage import Stage, until, until_recorded

log: list[str] = []


def refund(receipt: str) -> None:
    log.append(f"refund {receipt}")


@step(undo=refund)
async def charge(order: str) -> str:
    log.append(f"charge {order}")
    return f"receipt of {order}"


async def release(order: str, count: int) -> None:
    log.append(f"release {count} of {order}")


async def reserve(order: str) -> int:
    log.append(f"reserve {order}")
    return 3


@step(retry=Retry.never())
async def ship(order: str) -> None:
    raise ConnectionError("no van")


@step(retry=Retry.never())
async def ship_once() -> str:
    log.append("ship")
    if log.count("ship") == 1:
        raise ConnectionError("no van")
    return "shipped"


@pytest.fixture(autouse=True)
def _fresh_log() -> None:
    log.clear()


@workflow("undo.order.v1")
async def ordering(ctx: Context, order: str) -> None:
    count = await ctx.step(reserve, order)
    ctx.undo(release, order, count)
    await ctx.step(charge, order)
    await ctx.step(ship, order)


@step(ephemeral=True)
async def refund_in_passing(receipt: str) -> None:
    log.append(f"refund {receipt}")


@workflow("undo.passing.v1")
async def ordering_in_passing(ctx: Context) -> None:
    for order in ("a", "b", "c"):
        await ctx.options(undo=refund_in_passing).step(reserve, order)
    await ctx.step(ship, "all")


async def test_undos_that_do_not_wait_for_each_other_are_all_done(stage: Stage) -> None:
    engine = stage.engine(ordering_in_passing)
    async with engine.worker():
        with pytest.raises(RunFailed, match="no van"):
            await (await engine.start(ordering_in_passing())).result("30s")
    assert log[3:] == ["refund 3"] * 3


async def test_a_failed_run_undoes_what_it_did_and_then_fails(stage: Stage) -> None:
    engine = stage.engine(ordering)
    async with engine.worker():
        run = await engine.start(ordering("o-1"))
        with pytest.raises(RunFailed, match="no van"):
            await run.result("20s")
    assert log == ["reserve o-1", "charge o-1", "refund receipt of o-1", "release 3 of o-1"]
    assert [record.location for record in await run.history()] == [
        "reserve",
        "charge",
        "ship",
        "charge/~undo",
        "release/~undo",
    ]


async def test_a_cancelled_run_undoes_what_it_did_and_goes_on_with_that_after_a_restart(stage: Stage) -> None:
    entered, permit = asyncio.Event(), asyncio.Event()

    async def take_back(receipt: str) -> None:
        entered.set()
        await permit.wait()
        log.append(f"took back {receipt}")

    @workflow("undo.cancelled.v1")
    async def cancelled(ctx: Context) -> None:
        await ctx.step(charge, "o-1")
        await ctx.options(undo=take_back, name="second").step(charge, "o-2")
        await ctx.receive("never")

    engine = stage.engine(cancelled)
    async with engine.worker(grace=0):
        run = await engine.start(cancelled())
        await until(run, Status.WAITING)
        assert await run.cancel("changed my mind")
        await entered.wait()
        await run.cancel("really")
    permit.set()
    assert "refund receipt of o-1" not in log
    async with engine.worker():
        with pytest.raises(RunCancelled, match="changed my mind"):
            await run.result("20s")
    assert log[-2:] == ["took back receipt of o-2", "refund receipt of o-1"]
    assert log.count("charge o-1") == 1


async def test_a_failing_undo_is_tried_by_its_own_policy_and_kept_with_the_run(stage: Stage) -> None:
    @step(retry=Retry.fixed("1ms", attempts=3))
    async def bounce(receipt: str) -> None:
        log.append("bounce")
        raise OSError("the bank is closed")

    @workflow("undo.failing.v1")
    async def failing(ctx: Context) -> None:
        await ctx.step(charge, "o-1")
        await ctx.options(undo=bounce, name="second").step(charge, "o-2")
        raise LookupError("first")

    engine = stage.engine(failing)
    async with engine.worker():
        run = await engine.start(failing())
        with pytest.raises(RunFailed, match="first") as caught:
            await run.result("20s")
    assert log[-4:] == ["bounce", "bounce", "bounce", "refund receipt of o-1"]
    failure = caught.value.failure
    assert failure is not None
    assert [(place, error.message) for place, error in failure.not_undone.items()] == [("second", "the bank is closed")]
    assert isinstance(caught.value.__cause__, LookupError)
    assert any("'second' did was not undone" in note for note in caught.value.__cause__.__notes__)


async def test_a_run_that_is_tried_again_is_undone_only_after_its_last_attempt(on_disk: Stage) -> None:
    @workflow("undo.again.v1", retry=Retry.fixed("1ms", attempts=3))
    async def again(ctx: Context) -> None:
        await ctx.step(charge, "o-1")
        await ctx.step(ship, "o-1")

    engine = on_disk.engine(again)
    async with engine.worker():
        run = await engine.start(again())
        with pytest.raises(RunFailed, match="no van"):
            await run.result("20s")
    assert log == ["charge o-1", "refund receipt of o-1"]
    assert (await run.info()).attempt == 3


async def test_a_rollback_is_not_tried_again_by_step_or_run(on_disk: Stage) -> None:
    async def hopeless() -> None:
        log.append("hopeless")
        raise Rollback("sold out")

    @workflow("undo.rollback.v1", retry=Retry.fixed("1ms", attempts=3))
    async def rolled_back(ctx: Context) -> None:
        await ctx.step(charge, "o-1")
        await ctx.step(hopeless)

    engine = on_disk.engine(rolled_back)
    async with engine.worker():
        with pytest.raises(RunFailed, match="sold out") as caught:
            await (await engine.start(rolled_back())).result("20s")
    assert isinstance(caught.value.__cause__, Rollback)
    assert log == ["charge o-1", "hopeless", "refund receipt of o-1"]


async def test_a_run_that_is_cancelled_between_two_attempts_is_undone(on_disk: Stage) -> None:
    @workflow("undo.between.v1", retry=Retry.fixed("1h", attempts=3))
    async def again(ctx: Context) -> None:
        await ctx.step(charge, "o-1")
        await ctx.step(ship, "o-1")

    engine = on_disk.engine(again)
    async with engine.worker():
        run = await engine.start(again())
        await until(run, Status.WAITING)
        assert log == ["charge o-1"]
        await run.cancel()
        with pytest.raises(RunCancelled):
            await run.result("20s")
    assert log == ["charge o-1", "refund receipt of o-1"]


@pytest.mark.parametrize("terminated", [False, True])
async def test_a_run_that_is_stopped_between_two_attempts_and_fails_at_once_has_no_third(
    on_disk: Stage, terminated: bool
) -> None:
    @workflow("undo.stopped.v1", retry=Retry.fixed("1h", attempts=None))
    async def hopeless(ctx: Context) -> None:
        await ctx.step(charge, "o-1")
        log.append("hopeless")
        raise ValueError("it waits for nothing new, so nothing can interrupt it")

    engine = on_disk.engine(hopeless)
    async with engine.worker():
        run = await engine.start(hopeless())
        await until(run, Status.WAITING)
        assert log == ["charge o-1", "hopeless"]
        await (run.terminate(undo=True) if terminated else run.cancel())
        with pytest.raises(RunFailed, match="it waits for nothing new"):
            await run.result("20s")
    assert log == ["charge o-1", "hopeless", "hopeless", "refund receipt of o-1"]
    assert (await run.info()).attempt == 2


async def test_a_block_is_undone_and_the_run_goes_on(on_disk: Stage) -> None:
    @workflow("undo.block.v1")
    async def blocks(ctx: Context) -> str:
        for shop in ("first", "second"):
            try:
                async with ctx.saga():
                    await ctx.step(charge, shop)
                    if shop == "first":
                        await ctx.step(ship, shop)
            except ConnectionError:
                continue
        return "done"

    engine = on_disk.engine(blocks)
    async with engine.worker():
        assert await (await engine.start(blocks())).result("20s") == "done"
    assert log == ["charge first", "refund receipt of first", "charge second"]


async def test_a_run_that_expires_is_not_undone() -> None:
    @workflow("undo.expired.v1")
    async def expiring(ctx: Context) -> None:
        await ctx.step(charge, "o-1")
        await ctx.receive("never")

    async with Environment([expiring]) as env:
        run = await env.start(expiring(), deadline="1h")
        await env.settle()
        assert log == ["charge o-1"]
        await env.advance("2h")
        with pytest.raises(RunFailed, match="deadline"):
            await run.result()
    assert log == ["charge o-1"]


async def test_a_run_that_is_opened_again_does_again_what_was_undone(on_disk: Stage) -> None:
    @workflow("undo.opened.v1")
    async def opened(ctx: Context) -> str:
        await ctx.step(charge, "o-1")
        return await ctx.step(ship_once)

    engine = on_disk.engine(opened)
    async with engine.worker():
        run = await engine.start(opened())
        with pytest.raises(RunFailed, match="no van"):
            await run.result("20s")
        await run.retry()
        assert await run.result("20s") == "shipped"
    assert log == ["charge o-1", "ship", "refund receipt of o-1", "charge o-1", "ship"]


async def test_children_that_are_waited_for_between_two_attempts_are_not_taken_for_undoing(on_disk: Stage) -> None:
    @workflow("undo.child.v1")
    async def child(ctx: Context) -> None:
        await ctx.receive("end")

    @workflow("undo.waiting.v1", retry=Retry.fixed("1ms", attempts=2))
    async def waiting(ctx: Context) -> str:
        await ctx.step(charge, "o-1")
        for name in ("first", "second"):
            ctx.spawn(child(), id=name, on_close="wait")
        return await ctx.step(ship_once)

    engine = on_disk.engine(waiting, child)
    async with engine.worker():
        run = await engine.start(waiting())
        await until_recorded(run, 2)
        await engine.send("first", "end")
        await until_recorded(run, 3)
        await until(run, Status.WAITING)
    async with engine.worker():
        await engine.send("second", "end")
        assert await run.result("20s") == "shipped"
    assert log == ["charge o-1", "ship", "ship"]


@pytest.mark.parametrize("terminated", [False, True])
@pytest.mark.parametrize(("fails_again", "restarted"), [(False, False), (True, False), (False, True)])
async def test_a_failed_attempt_that_is_stopped_while_it_waits_for_its_children_is_undone(
    stage: Stage, terminated: bool, fails_again: bool, restarted: bool
) -> None:
    @workflow("undo.stopped.child.v1")
    async def child(ctx: Context) -> None:
        await ctx.receive("end")

    @workflow("undo.stopped.waiting.v1", retry=Retry.fixed("1h", attempts=None))
    async def waiting(ctx: Context) -> None:
        await ctx.step(charge, "o-1")
        ctx.spawn(child(), on_close="wait")
        if fails_again or "failed" not in log:
            log.append("failed")
            raise ValueError("no van")
        await ctx.receive("never")

    engine = stage.engine(waiting, child)
    async with AsyncExitStack() as first:
        await first.enter_async_context(engine.worker())
        run = await engine.start(waiting())
        await until(run, Status.WAITING)
        assert (await run.info()).reason is Reason.CHILD
        if restarted:
            await first.aclose()
        await (run.terminate(undo=True) if terminated else run.cancel())
        if restarted:
            await first.enter_async_context(engine.worker())
        with pytest.raises(RunFailed if fails_again else (RunTerminated if terminated else RunCancelled)):
            await run.result("20s")
    assert [line for line in log if line != "failed"] == ["charge o-1", "refund receipt of o-1"]


async def test_what_undoes_a_step_has_to_be_a_function() -> None:
    with pytest.raises(ValueError, match="undo="):
        step(undo="refund")  # type: ignore[call-overload] # wrong on purpose
