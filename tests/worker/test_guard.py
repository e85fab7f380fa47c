from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from perdure import Context, Engine, Status, workflow
from perdure.admin import Reason
from perdure.replay.execution import Execution
from perdure.replay.run_loop import DrainContext
from perdure.worker.steps.attempt import Attempt
from perdure.worker.steps.step_task import is_end_of
from tests.helpers import eventually


@workflow("guard.sleeper.v1")
async def sleeper(ctx: Context) -> str:
    await ctx.sleep("1h")
    return "slept"


@workflow("guard.healthy.v1")
async def healthy(ctx: Context) -> str:
    return "well"


async def test_a_defect_met_while_working_on_a_run_sets_that_run_aside_and_leaves_its_neighbours_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    begin = Execution.begin

    def broken(self: Execution, around: DrainContext | None) -> None:
        if self.run_id == "broken":
            raise ZeroDivisionError("a defect")
        begin(self, around)

    monkeypatch.setattr(Execution, "begin", broken)
    async with Engine(f"sqlite:///{tmp_path}/app.db", [sleeper, healthy]) as engine, engine.worker():
        run = await engine.start(sleeper(), id="broken")

        async def is_blocked() -> bool:
            return await run.status() is Status.BLOCKED

        await eventually(is_blocked)
        assert (await run.info()).reason is Reason.UNDECODABLE
        assert "a defect" in await run.why()
        assert await (await engine.start(healthy())).result("20s") == "well"
    [logged] = [record for record in caplog.records if "cannot go on" in record.message]
    assert logged.message == "run broken cannot go on: a defect"
    assert logged.exc_info is not None
    assert logged.exc_info[0] is ZeroDivisionError


async def nothing() -> None: ...


@workflow("guard.parent.v1")
async def parent(ctx: Context) -> None:
    await asyncio.gather(ctx.call(healthy()), ctx.step(nothing))


async def test_nothing_that_a_run_has_asked_for_leaves_it_when_it_is_set_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Attempt, *_: object) -> None:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(Attempt, "start", broken)
    async with Engine(f"sqlite:///{tmp_path}/app.db", [parent, healthy]) as engine, engine.worker():
        run = await engine.start(parent())

        async def is_blocked() -> bool:
            return await run.status() is Status.BLOCKED

        await eventually(is_blocked)
        assert [one.id for one in (await engine.runs.list()).runs] == [run.id]


async def test_a_cancellation_is_the_end_of_a_task_only_if_the_task_itself_is_cancelled() -> None:
    task = asyncio.create_task(asyncio.sleep(60))
    assert not is_end_of(task, asyncio.CancelledError())
    task.cancel()
    assert is_end_of(task, asyncio.CancelledError())
    assert is_end_of(None, asyncio.CancelledError())
    await asyncio.wait([task])


async def test_an_exit_of_a_generator_is_the_end_of_a_task_only_if_others_close_it() -> None:
    own, other = asyncio.current_task(), asyncio.create_task(asyncio.sleep(60))
    assert not is_end_of(own, GeneratorExit())
    assert is_end_of(other, GeneratorExit())
    assert not is_end_of(other, ValueError())
    other.cancel()
    await asyncio.wait([other])
