"""Effects of rough user code on its own run, and none on others."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from perdure import Context, Engine, RunFailed, Status, workflow
from tests.stage import Stage, until


async def quit_async() -> None:
    sys.exit(3)


def quit_sync() -> None:
    sys.exit(3)


async def interrupt() -> None:
    raise KeyboardInterrupt


async def cancel_itself() -> None:
    raise asyncio.CancelledError


class Odd(BaseException):
    pass


async def odd() -> None:
    raise Odd("not an Exception")


@workflow("rough.step.v1")
async def rough_step(ctx: Context, name: str) -> None:
    steps = {"quit_async": quit_async, "takeover": interrupt, "cancel_itself": cancel_itself, "odd": odd}
    await (ctx.step(quit_sync) if name == "quit_sync" else ctx.step(steps[name]))


@workflow("rough.body.v1")
async def rough_body(ctx: Context, name: str) -> None:
    await ctx.sleep("1ms")
    raise {"exit": SystemExit(3), "takeover": KeyboardInterrupt(), "odd": Odd()}[name]


@workflow("rough.good.v1")
async def good(ctx: Context) -> str:
    return await ctx.receive("word", str)


@pytest.mark.parametrize("name", ["quit_async", "quit_sync", "takeover", "cancel_itself", "odd"])
async def test_a_step_that_raises_what_is_no_exception_fails_alone(stage: Stage, name: str) -> None:
    engine = stage.engine(rough_step, good)
    async with engine.worker():
        neighbour = await engine.start(good())
        run = await engine.start(rough_step(name))
        with pytest.raises(RunFailed):
            await run.result("20s")
        await neighbour.send("word", "unharmed")
        assert await neighbour.result("20s") == "unharmed"
    [record] = await run.history()
    assert (record.failed, record.attempts) == (True, 1)


@pytest.mark.parametrize("name", ["exit", "takeover", "odd"])
async def test_a_workflow_that_raises_what_is_no_exception_fails_alone(stage: Stage, name: str) -> None:
    engine = stage.engine(rough_body, good)
    async with engine.worker():
        neighbour = await engine.start(good())
        run = await engine.start(rough_body(name))
        with pytest.raises(RunFailed):
            await run.result("20s")
        await neighbour.send("word", "unharmed")
        assert await neighbour.result("20s") == "unharmed"


async def test_a_workflow_that_swallows_everything_still_leaves_memory(stage: Stage) -> None:
    @workflow("rough.clinging.v1")
    async def clinging(ctx: Context) -> str:
        for _ in range(3):
            try:
                return await ctx.receive("word", str)
            except BaseException:
                continue
        return "never reached by letting go"

    engine = stage.engine(clinging)
    run = await engine.start(clinging())
    async with engine.worker(resident=0):
        await until(run, Status.WAITING)
        assert await run.history() == []
        await run.send("word", "hello")
        assert await run.result("20s") == "hello"


async def test_cleanup_code_of_a_run_that_is_only_let_go_runs_no_step(stage: Stage) -> None:
    ran: list[str] = []

    async def effect() -> None:
        ran.append("effect")

    @workflow("rough.cleanup.v1")
    async def cleaning(ctx: Context) -> str:
        try:
            return await ctx.receive("word", str)
        finally:
            await ctx.step(effect)

    engine = stage.engine(cleaning)
    run = await engine.start(cleaning())
    for _ in range(3):
        async with engine.worker(resident=0):
            await until(run, Status.WAITING)
    assert ran == []
    await run.send("word", "done")
    async with engine.worker():
        assert await run.result("20s") == "done"
    assert ran == ["effect"]


def test_one_engine_lives_through_several_event_loops(tmp_path: Path) -> None:
    engine = Engine(f"sqlite:///{tmp_path / 'runs.db'}", [good])

    async def begin() -> None:
        async with engine.worker():
            await until(await engine.start(good(), id="one"), Status.WAITING)

    async def end() -> str:
        async with engine.worker():
            run = await engine.get("one", good)
            await run.send("word", "across loops")
            result = await run.result("20s")
        await engine.close()
        return result

    asyncio.run(begin())
    assert asyncio.run(end()) == "across loops"
