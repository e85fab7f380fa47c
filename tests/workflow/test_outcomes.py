from __future__ import annotations

import asyncio

import pytest

from perdure import Context, Retry, RunFailed, Status, StepFailed, UsageError, step, workflow
from perdure.errors import NeverAwaited, NotInWorkflow
from tests.stage import Stage, until


class OutOfStock(Exception):
    def __init__(self, sku: str, wanted: int) -> None:
        super().__init__(sku, wanted)
        self.sku = sku
        self.wanted = wanted

    def __str__(self) -> str:
        return f"{self.wanted} of {self.sku} are not there"


@step(retry=Retry.never())
async def reserve(sku: str) -> None:
    raise OutOfStock(sku, 3)


async def test_an_error_comes_back_as_the_cause_of_a_failed_run(stage: Stage) -> None:
    @workflow("end.fail.v1")
    async def failing(ctx: Context) -> None:
        await ctx.step(reserve, "socks")

    engine = stage.engine(failing)
    async with engine.worker():
        run = await engine.start(failing())
        with pytest.raises(RunFailed, match="OutOfStock: 3 of socks are not there") as caught:
            await run.result("20s")
    cause = caught.value.__cause__
    assert isinstance(cause, OutOfStock)
    assert (cause.sku, cause.wanted) == ("socks", 3)
    assert caught.value.run_id == run.id
    assert "in reserve" in "".join(cause.__notes__)
    assert await run.status() is Status.FAILED


async def test_a_workflow_catches_the_error_of_a_step_by_its_class(stage: Stage) -> None:
    @workflow("end.catch.v1")
    async def catching(ctx: Context) -> str:
        try:
            await ctx.step(reserve, "socks")
        except OutOfStock as error:
            return f"{error.sku}:{error.wanted}"
        return "impossible"

    engine = stage.engine(catching)
    async with engine.worker():
        assert await (await engine.start(catching())).result("20s") == "socks:3"


async def test_an_error_of_an_unknown_class_keeps_its_name(stage: Stage) -> None:
    class Hidden(Exception):
        """Not to be found in any module."""

    @step(retry=Retry.never())
    async def fail() -> None:
        raise Hidden("oh")

    @workflow("end.hidden.v1")
    async def failing(ctx: Context) -> str:
        try:
            await ctx.step(fail)
        except StepFailed as error:
            return str(error)
        return "impossible"

    engine = stage.engine(failing)
    async with engine.worker():
        assert "Hidden: oh" in await (await engine.start(failing())).result("20s")


async def test_an_error_that_the_engine_was_told_of_comes_back_as_itself(stage: Stage) -> None:
    class Hidden(Exception):
        """Not to be found in any module."""

    @workflow("end.told.v1")
    async def failing(ctx: Context) -> None:
        raise Hidden("oh")

    engine = stage.engine(failing, errors=[Hidden])
    async with engine.worker():
        with pytest.raises(RunFailed) as caught:
            await (await engine.start(failing())).result("20s")
    assert isinstance(caught.value.__cause__, Hidden)


async def test_the_cause_of_an_error_comes_along(stage: Stage) -> None:
    @workflow("end.chain.v1")
    async def failing(ctx: Context) -> None:
        try:
            raise KeyError("inner")
        except KeyError as error:
            raise ValueError("outer") from error

    engine = stage.engine(failing)
    async with engine.worker():
        with pytest.raises(RunFailed) as caught:
            await (await engine.start(failing())).result("20s")
    outer = caught.value.__cause__
    assert isinstance(outer, ValueError)
    assert isinstance(outer.__cause__, KeyError)


async def test_the_errors_of_a_task_group_come_back_as_a_group(stage: Stage) -> None:
    @workflow("end.group.v1")
    async def failing(ctx: Context) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(ctx.step(reserve, "socks"))

    engine = stage.engine(failing)
    async with engine.worker():
        with pytest.raises(RunFailed) as caught:
            await (await engine.start(failing())).result("20s")
    group = caught.value.__cause__
    assert isinstance(group, ExceptionGroup)
    assert isinstance(group.exceptions[0], OutOfStock)


async def test_waiting_for_a_result_can_time_out(stage: Stage) -> None:
    @workflow("end.never.v1")
    async def never(ctx: Context) -> None:
        await ctx.receive("never")

    engine = stage.engine(never)
    async with engine.worker():
        run = await engine.start(never())
        with pytest.raises(TimeoutError, match="did not finish within '20ms'"):
            await run.result("20ms")
        await until(run, Status.WAITING)


async def test_a_waiter_that_is_cancelled_does_not_disturb_the_others(stage: Stage) -> None:
    @workflow("end.signal.v1")
    async def signalled(ctx: Context) -> str:
        return await ctx.receive("go", str)

    engine = stage.engine(signalled)
    async with engine.worker():
        run = await engine.start(signalled())
        first = asyncio.ensure_future(run.result())
        second = asyncio.ensure_future(run.result("20s"))
        await until(run, Status.WAITING)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        await run.send("go", "on")
        assert await second == "on"


async def test_many_waiters_get_one_result(stage: Stage) -> None:
    @workflow("end.shared.v1")
    async def shared(ctx: Context) -> str:
        return await ctx.receive("go", str)

    engine = stage.engine(shared)
    async with engine.worker():
        run = await engine.start(shared())
        waiting = [asyncio.ensure_future(run.result("20s")) for _ in range(100)]
        await run.send("go", "on")
        assert set(await asyncio.gather(*waiting)) == {"on"}


async def test_a_result_from_another_process_is_seen(on_disk: Stage) -> None:
    @workflow("end.far.v1")
    async def far(ctx: Context) -> str:
        return await ctx.receive("go", str)

    worker_side, client = on_disk.engine(far), on_disk.engine(far)
    async with worker_side.worker():
        run = await client.start(far())
        waiting = asyncio.ensure_future(run.result("20s"))
        await until(run, Status.WAITING)
        await client.send(run.id, "go", "done")
        assert await waiting == "done"


async def test_an_operation_that_was_never_awaited_fails_the_run_and_is_named(stage: Stage) -> None:
    @workflow("end.forgetful.v1")
    async def forgetful(ctx: Context) -> int:
        ctx.step(reserve, "socks")
        return 1

    engine = stage.engine(forgetful)
    async with engine.worker():
        with pytest.raises(RunFailed, match="reserve") as caught:
            await (await engine.start(forgetful())).result("20s")
    assert isinstance(caught.value.__cause__, NeverAwaited)


async def test_io_in_a_workflow_is_an_error_that_says_to_use_a_step(stage: Stage) -> None:
    @workflow("end.io.v1")
    async def reading(ctx: Context) -> None:
        await asyncio.to_thread(print, "effect")

    engine = stage.engine(reading)
    async with engine.worker():
        with pytest.raises(RunFailed, match="do this in a step") as caught:
            await (await engine.start(reading())).result("20s")
    assert isinstance(caught.value.__cause__, NotInWorkflow)


async def test_a_workflow_that_spins_fails_instead_of_blocking_its_worker(on_disk: Stage) -> None:
    @workflow("end.spin.v1")
    async def spinning(ctx: Context) -> None:
        while True:  # noqa: ASYNC110 - that is the mistake
            await asyncio.sleep(0)

    engine = on_disk.engine(spinning)
    async with engine.worker():
        with pytest.raises(RunFailed, match="LoopStuck"):
            await (await engine.start(spinning())).result("60s")


async def test_a_workflow_needs_no_step_to_have_a_result(stage: Stage) -> None:
    @workflow("end.plain.v1")
    async def plain(ctx: Context) -> None:
        return None

    engine = stage.engine(plain)
    async with engine.worker():
        run = await engine.start(plain())
        await run.result("20s")
        assert await run.history() == []


async def test_an_engine_without_workflows_has_no_worker(stage: Stage) -> None:
    with pytest.raises(UsageError, match="no workflows"):
        stage.engine().worker()
