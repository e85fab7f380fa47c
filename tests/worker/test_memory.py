from __future__ import annotations

import gc
from collections import Counter
from pathlib import Path

import pytest

from perdure import Context, Engine, workflow
from perdure.replay.execution import Execution
from perdure.replay.operations import StepOperation
from perdure.worker.run.workflow_run import WorkflowRun
from perdure.worker.steps.attempt import Attempt
from tests.helpers import eventually, in_memory


async def work(number: int) -> int:
    return number


def work_in_thread(number: int) -> int:
    return number


@workflow("memory.v1")
async def two_steps(ctx: Context) -> int:
    return await ctx.step(work, 1) + await ctx.step(work_in_thread, 2)


def left_behind(*, collect: bool = True) -> Counter[str]:
    if collect:
        gc.collect()
    return Counter(type(thing).__name__ for thing in in_memory(Attempt, WorkflowRun, Execution, StepOperation))


@pytest.mark.parametrize("runs", [20])
async def test_a_finished_run_leaves_nothing_in_memory(tmp_path: Path, runs: int) -> None:
    before = left_behind()
    async with Engine(f"sqlite:///{tmp_path}/app.db", [two_steps]) as engine, engine.worker():
        for handle in await engine.start_many([two_steps() for _ in range(runs)]):
            assert await handle.result() == 3
        await eventually(lambda: not left_behind() - before, saying="nothing is left behind")


async def test_a_finished_run_is_no_work_for_the_garbage_collector(tmp_path: Path) -> None:
    before = left_behind()
    async with Engine(f"sqlite:///{tmp_path}/app.db", [two_steps]) as engine, engine.worker():
        gc.disable()
        try:
            for handle in await engine.start_many([two_steps() for _ in range(20)]):
                assert await handle.result() == 3
            await eventually(lambda: not left_behind(collect=False) - before, saying="all of it is freed")
        finally:
            gc.enable()
