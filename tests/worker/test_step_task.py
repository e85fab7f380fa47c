"""Steps begin without a task; code that looks at its task, context or cancellation sees what a task would show."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import pytest

from perdure import Context, Retry, step, step_info, workflow
from perdure.errors import RunFailed, StepTimeout
from tests.stage import Stage

tenant: ContextVar[str] = ContextVar("tenant", default="none")
seen: dict[str, Any] = {}


async def outcome(stage: Stage, function: Callable[..., Any], times: int = 1) -> list[Any]:
    """Results of a step that is called some times in one run."""

    @workflow("task.calls.v1")
    async def calls(ctx: Context) -> list[Any]:
        return [await ctx.step(function) for _ in range(times)]

    async with stage.engine(calls) as engine, engine.worker():
        return await (await engine.start(calls())).result()


async def test_a_step_that_never_waits_has_a_current_task_of_its_own(stage: Stage) -> None:
    tasks: list[Any] = []

    async def look() -> bool:
        task = asyncio.current_task()
        tasks.append(task)
        return isinstance(task, asyncio.Task) and asyncio.current_task() is task

    assert await outcome(stage, look, 3) == [True] * 3
    assert len(set(map(id, tasks))) == 3
    await asyncio.sleep(0)
    assert all(task.done() and task.exception() is None for task in tasks) or await asyncio.gather(*tasks)


async def test_another_thread_that_looks_at_the_task_of_a_step_ends_nothing(stage: Stage) -> None:
    """Python 3.12 and newer read the context of a task without a check that it has one."""

    async def look() -> str:
        loop, told = asyncio.get_running_loop(), list[str]()

        def watch() -> None:
            task: Any = asyncio.current_task(loop)
            try:
                task.get_context()
            except AttributeError as error:
                told.append(str(error))
            told.append(repr(task))

        thread = threading.Thread(target=watch)
        thread.start()
        thread.join()
        return told[0]

    assert await outcome(stage, look) == [
        "another thread asks for 'get_context' of the task of a step that has not waited yet"
    ]


async def test_the_task_that_a_step_sees_before_it_waits_is_the_one_that_goes_on_with_it(stage: Stage) -> None:
    async def look() -> bool:
        task = asyncio.current_task()
        await asyncio.sleep(0)
        first = asyncio.current_task() is task
        await asyncio.sleep(0.001)
        return first and asyncio.current_task() is task

    assert await outcome(stage, look) == [True]


async def test_the_task_of_a_step_has_its_location_as_its_name_and_is_among_all_tasks(stage: Stage) -> None:
    async def look() -> str:
        task = asyncio.current_task()
        assert task is not None
        name = task.get_name()
        assert task in asyncio.all_tasks()
        return name

    assert [name.rpartition(".")[2] for name in await outcome(stage, look, 2)] == ["look", "look#2"]


async def test_a_task_that_was_only_kept_can_be_awaited_after_its_step(stage: Stage) -> None:
    async def keep() -> None:
        seen["task"] = asyncio.current_task()

    async def wait() -> bool:
        return await seen["task"] is None and seen["task"].done()

    @workflow("task.kept.v1")
    async def flow(ctx: Context) -> bool:
        await ctx.step(keep)
        return await ctx.step(wait)

    async with stage.engine(flow) as engine, engine.worker():
        assert await (await engine.start(flow())).result() is True


async def test_a_task_that_nothing_keeps_is_freed_with_its_step(stage: Stage) -> None:
    freed: list[bool] = []

    async def look() -> None:
        freed.append(all(ref() is None for ref in seen.get("refs", [])))
        seen["refs"] = [*seen.get("refs", []), weakref.ref(asyncio.current_task())]

    gc.disable()
    try:
        await outcome(stage, look, 3)
    finally:
        gc.enable()
    assert freed == [True] * 3


async def test_variables_that_a_step_sets_without_waiting_reach_no_other_step(stage: Stage) -> None:
    async def sets() -> str:
        before = tenant.get()
        tenant.set("acme")
        return before

    assert await outcome(stage, sets, 3) == ["none"] * 3
    assert tenant.get() == "none"


async def test_variables_that_a_step_sets_before_it_waits_are_there_afterwards_and_in_its_tasks(stage: Stage) -> None:
    async def child() -> str:
        return f"{tenant.get()} {step_info().location.rpartition('.')[2]}"

    async def sets() -> list[str]:
        tenant.set("acme")
        started = asyncio.create_task(child())
        await asyncio.sleep(0)
        return [tenant.get(), await started]

    assert await outcome(stage, sets) == [["acme", "acme sets"]]


async def test_asyncio_timeout_works_in_the_first_part_of_a_step(stage: Stage) -> None:
    async def slow() -> str:
        try:
            async with asyncio.timeout(0.001):
                await asyncio.Event().wait()
        except TimeoutError:
            return "timed out"
        return "never"

    assert await outcome(stage, slow) == ["timed out"]


async def test_a_task_group_works_in_the_first_part_of_a_step(stage: Stage) -> None:
    async def fails() -> None:
        raise ValueError("one of them")

    async def groups() -> str:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(fails())
                group.create_task(asyncio.Event().wait())
        except ExceptionGroup as caught:
            return str(caught.exceptions[0])
        return "never"

    assert await outcome(stage, groups) == ["one of them"]


@pytest.mark.parametrize("waits", [asyncio.sleep, None], ids=["bare", "future"])
async def test_a_step_that_cancels_its_own_task_is_interrupted_where_it_waits_next(stage: Stage, waits: Any) -> None:
    @step(retry=Retry.never())
    async def cancels() -> str:
        task = asyncio.current_task()
        assert task is not None
        task.cancel("enough")
        try:
            await (asyncio.Event().wait() if waits is None else waits(0))
        except asyncio.CancelledError as error:
            assert task.cancelling() == 1
            task.uncancel()
            await asyncio.sleep(0)
            return str(error)
        return "never"

    assert await outcome(stage, cancels) == ["enough"]


async def test_a_cancellation_before_the_next_turn_of_the_loop_reaches_the_task_that_the_step_waits_for(
    stage: Stage,
) -> None:
    async def inner() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "stopped"
        return "never"

    async def waits() -> str:
        task = asyncio.current_task()
        assert task is not None
        started = asyncio.create_task(inner())
        # Not `task.cancel` itself: a look at it makes the task.
        asyncio.get_running_loop().call_soon(lambda: task.cancel())  # noqa: PLW0108 # see above
        return await started

    assert await outcome(stage, waits) == ["stopped"]


async def test_a_step_that_ends_although_its_task_was_cancelled_keeps_its_result(stage: Stage) -> None:
    async def cancels() -> str:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        return "done"

    assert await outcome(stage, cancels) == ["done"]


async def test_a_timeout_interrupts_a_step_that_waits_and_none_that_has_returned(stage: Stage) -> None:
    @step(timeout=0.02, retry=Retry.never())
    async def slow() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            seen["cleaned"] = True

    @step(timeout=30, retry=Retry.never())
    async def quick() -> str:
        return "quick"

    assert await outcome(stage, quick, 2) == ["quick"] * 2
    with pytest.raises(RunFailed) as failed:
        await outcome(stage, slow)
    assert isinstance(failed.value.__cause__, StepTimeout)
    assert seen.pop("cleaned") is True


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError()])
async def test_no_error_of_a_step_that_never_waits_ends_the_worker(stage: Stage, error: BaseException) -> None:
    @step(retry=Retry.never())
    async def ends() -> None:
        raise error

    @workflow("task.ends.v1")
    async def flow(ctx: Context) -> str:
        try:
            await ctx.step(ends)
        except Exception as caught:
            return type(caught).__name__
        return "never"

    async with stage.engine(flow) as engine, engine.worker():
        assert await (await engine.start(flow())).result() != "never"


async def test_an_asynchronous_generator_of_a_step_is_one_of_the_worker(stage: Stage) -> None:
    async def numbers() -> Any:
        try:
            yield 1
            yield 2
        finally:
            await asyncio.sleep(0)
            seen["closed"] = True

    async def first() -> int:
        async for number in numbers():
            return int(number)
        return 0

    async def look() -> bool:
        for _ in range(20):
            await asyncio.sleep(0)
        return bool(seen.pop("closed", False))

    @workflow("task.generates.v1")
    async def flow(ctx: Context) -> list[Any]:
        return [await ctx.step(first), await ctx.step(look)]

    async with stage.engine(flow) as engine, engine.worker():
        assert await (await engine.start(flow())).result() == [1, True]
