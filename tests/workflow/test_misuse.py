"""Steps that cannot succeed are not tried again, and errors point at the line that made them."""

from __future__ import annotations

import pytest

from perdure import Context, Retry, RunFailed, workflow
from perdure.core.model.run import Status
from perdure.errors import WorkflowError
from perdure.replay.outcome import describe_forgotten
from tests.replay.driver import Driver, named
from tests.stage import Stage

PATIENT = Retry(attempts=5, initial="1h", jitter=0.0)


def charge(cents: int) -> int:
    return cents


async def reserve(cents: int) -> int:
    return cents


def picky(cents: int) -> int:
    raise TypeError("not today")


@workflow("misuse.sync")
async def lacks_argument(ctx: Context) -> None:
    await ctx.options(retry=PATIENT).step(charge)  # type: ignore[call-overload] # the mistake that is meant


@workflow("misuse.async")
async def lacks_argument_of_async(ctx: Context) -> None:
    await ctx.options(retry=PATIENT).step(reserve)  # type: ignore[call-overload] # the mistake that is meant


@workflow("misuse.nested")
async def nested(ctx: Context) -> None:
    async def outer() -> int:
        return await ctx.step(reserve, 1)

    await ctx.options(retry=PATIENT).step(outer)


@workflow("misuse.own")
async def own_error(ctx: Context) -> None:
    await ctx.options(retry=Retry(attempts=3, initial=0)).step(picky, 1)


async def test_a_call_that_does_not_fit_the_function_is_not_tried_again(stage: Stage) -> None:
    engine = stage.engine(lacks_argument, lacks_argument_of_async, nested, own_error)
    async with engine.worker():
        for flow in (lacks_argument(), lacks_argument_of_async()):
            run = await engine.start(flow)
            with pytest.raises(RunFailed, match="missing 1 required positional argument: 'cents'"):
                await run.result("60s")
            assert [record.attempts for record in await run.history()] == [1]


async def test_a_context_that_is_used_in_a_step_is_not_tried_again(stage: Stage) -> None:
    engine = stage.engine(nested)
    async with engine.worker():
        run = await engine.start(nested())
        with pytest.raises(RunFailed) as failed:
            await run.result("60s")
    assert isinstance(failed.value.__cause__, WorkflowError)


async def test_a_type_error_of_the_function_itself_is_tried_again(stage: Stage) -> None:
    engine = stage.engine(own_error)
    async with engine.worker():
        run = await engine.start(own_error())
        with pytest.raises(RunFailed, match="not today"):
            await run.result("60s")
    assert [record.attempts for record in await run.history()][-1] == 3


async def forgets(ctx: Context) -> None:
    kept = ctx.options(name="kept").step(charge, 1)
    await ctx.step(charge, 2)
    ctx.step(charge, 3)
    await kept


async def test_a_forgotten_operation_is_named_with_its_line() -> None:
    told = describe_forgotten("charge#2", forgets)
    assert told.startswith("charge#2 (test_misuse.py:")
    assert told.endswith(": `ctx.step(charge, 3)`)")
    assert describe_forgotten("kept", forgets).endswith(': `kept = ctx.options(name="kept").step(charge, 1)`)')


@pytest.mark.parametrize("function", [None, print, lambda ctx: ctx], ids=["none", "builtin", "lambda"])
def test_a_forgotten_operation_without_a_line_keeps_its_name(function: object) -> None:
    assert describe_forgotten("a/charge", function) == "a/charge"  # type: ignore[arg-type] # the mistake that is tested


def test_an_await_of_another_loop_says_to_use_a_step() -> None:
    async def flow(ctx: Context) -> None:
        await named(ctx, "a")
        raise RuntimeError("Task x got Future y attached to a different loop")

    run = Driver(flow)
    run.complete("a")
    assert run.ended.status is Status.FAILED
    assert "wait it in a step" in str(run.error)
