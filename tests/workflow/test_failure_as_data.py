from __future__ import annotations

import asyncio

import pytest

from perdure import (
    Context,
    Failed,
    FailureKind,
    Fatal,
    Retry,
    Rollback,
    RunCancelled,
    RunFailed,
    Status,
    Succeeded,
    step,
    workflow,
)
from perdure.errors import BadArguments, JoinError
from tests.stage import Stage, until

SOON = Retry.fixed("1ms", attempts=3)


@step(retry=SOON)
async def act(how: str) -> str:
    match how:
        case "raise":
            raise ConnectionError("no")
        case "fatal":
            raise Fatal("never")
        case "rollback":
            raise Rollback("back")
        case "slow":
            await asyncio.Event().wait()
    return how


@step(retry=Retry(give_up_on=(LookupError,)))
async def hopeless() -> None:
    raise KeyError("gone")


def told(outcome: Succeeded[str] | Failed | Succeeded[None]) -> str:
    if outcome.ok:
        return f"ok {outcome.value}"
    return f"{outcome.kind} {outcome.attempts} {type(outcome.error).__name__}"


@workflow("data.steps.v1")
async def steps(ctx: Context) -> list[str]:
    seen = [told(await ctx.outcome(ctx.step(act, how))) for how in ("well", "raise", "fatal")]
    seen.append(told(await ctx.outcome(ctx.options(timeout="5ms").step(act, "slow"))))
    seen.append(told(await ctx.outcome(ctx.step(hopeless))))
    await ctx.sleep("1ms")
    return seen


async def test_what_comes_of_a_step_is_a_value_that_says_how_it_failed(stage: Stage) -> None:
    engine = stage.engine(steps)
    async with engine.worker():
        run = await engine.start(steps())
        assert await run.result("20s") == [
            "ok well",
            "exhausted 3 ConnectionError",
            "fatal 1 Fatal",
            "timeout 3 StepTimeout",
            "fatal 1 KeyError",
        ]


async def test_what_came_of_a_step_is_the_same_after_a_restart(on_disk: Stage) -> None:
    @workflow("data.restart.v1")
    async def remembered(ctx: Context) -> str:
        outcome = await ctx.outcome(ctx.step(act, "raise"))
        await ctx.receive("go on")
        return told(outcome)

    engine = on_disk.engine(remembered)
    async with engine.worker():
        run = await engine.start(remembered())
        await until(run, Status.WAITING)
    await run.send("go on")
    async with engine.worker():
        assert await run.result("20s") == "exhausted 3 ConnectionError"


async def test_a_rollback_is_raised_unless_it_is_asked_for(on_disk: Stage) -> None:
    @workflow("data.rollback.v1")
    async def rolling(ctx: Context) -> str:
        first = await ctx.outcome(ctx.step(act, "rollback"), catch=list(FailureKind))
        assert isinstance(first, Failed)
        assert first.kind is FailureKind.ROLLBACK
        await ctx.outcome(ctx.step(act, "rollback"))
        return "unreachable"

    engine = on_disk.engine(rolling)
    async with engine.worker():
        with pytest.raises(RunFailed, match="back"):
            await (await engine.start(rolling())).result("20s")


async def test_a_block_in_a_scope_of_its_own_turns_every_failure_inside_into_a_value(stage: Stage) -> None:
    async def block(ctx: Context) -> str:
        await ctx.step(act, "well")
        await ctx.join({"a": ctx.step(act, "raise"), "b": ctx.step(act, "well")})
        return "unreachable"

    @workflow("data.block.v1")
    async def blocks(ctx: Context) -> str:
        outcome = await ctx.outcome(block, name="checkout")
        assert isinstance(outcome, Failed)
        assert isinstance(outcome.error, JoinError)
        return told(outcome)

    engine = stage.engine(blocks)
    async with engine.worker():
        run = await engine.start(blocks())
        assert await run.result("20s") == "error 0 JoinError"
    assert "checkout/act" in [record.location for record in await run.history()]


async def test_a_wait_that_takes_too_long_is_a_timeout(on_disk: Stage) -> None:
    @workflow("data.wait.v1")
    async def waiting(ctx: Context) -> str:
        return told(await ctx.outcome(ctx.receive("never", str, timeout="1ms")))

    engine = on_disk.engine(waiting)
    async with engine.worker():
        assert await (await engine.start(waiting())).result("20s") == "timeout 0 TimeoutError"


async def test_a_cancellation_is_no_failure(on_disk: Stage) -> None:
    @workflow("data.cancel.v1")
    async def waiting(ctx: Context) -> str:
        return told(await ctx.outcome(ctx.receive("never", str)))

    engine = on_disk.engine(waiting)
    async with engine.worker():
        run = await engine.start(waiting())
        await until(run, Status.WAITING)
        await run.cancel()
        with pytest.raises(RunCancelled):
            await run.result("20s")


async def test_only_what_can_be_awaited_has_an_outcome(on_disk: Stage) -> None:
    @workflow("data.wrong.v1")
    async def wrong(ctx: Context) -> None:
        await ctx.outcome(42)  # type: ignore[arg-type] # wrong on purpose

    engine = on_disk.engine(wrong)
    async with engine.worker():
        with pytest.raises(RunFailed, match="takes an awaitable") as caught:
            await (await engine.start(wrong())).result("20s")
    assert isinstance(caught.value.__cause__, BadArguments)
