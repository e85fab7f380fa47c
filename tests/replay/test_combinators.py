"""asyncio's ways to wait for several things, each on a run's own loop and each replayed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from perdure import Context
from perdure.errors import WorkflowError
from tests.replay.driver import Driver, named


def test_gather_gives_results_in_the_order_of_the_calls() -> None:
    async def flow(ctx: Context) -> Any:
        return await asyncio.gather(named(ctx, "a"), named(ctx, "b"), named(ctx, "c"))

    run = Driver(flow)
    assert run.open == ["a", "b", "c"]
    run.complete("c", "C")
    run.complete("a", "A")
    run.complete("b", "B")
    assert run.settled().result == ["A", "B", "C"]


def test_gather_raises_the_first_error_and_leaves_the_others_running() -> None:
    async def flow(ctx: Context) -> Any:
        slow = named(ctx, "slow")
        try:
            await asyncio.gather(named(ctx, "bad"), slow)
        except ValueError as error:
            return [str(error), await slow]
        return []

    run = Driver(flow)
    run.fail("bad", ValueError("no"))
    assert run.open == ["slow"]
    run.complete("slow", "done")
    assert run.settled().result == ["no", "done"]


def test_gather_can_return_the_errors() -> None:
    async def flow(ctx: Context) -> Any:
        results = await asyncio.gather(named(ctx, "a"), named(ctx, "b"), return_exceptions=True)
        return [repr(result) for result in results]

    run = Driver(flow)
    run.fail("b", KeyError("k"))
    run.complete("a", "A")
    assert run.settled().result == ["'A'", "KeyError('k')"]


def test_gather_takes_coroutines_and_starts_them_in_order() -> None:
    async def branch(ctx: Context, key: str) -> str:
        first = await named(ctx, f"{key}1")
        return f"{first}+{await named(ctx, f'{key}2')}"

    async def flow(ctx: Context) -> Any:
        return await asyncio.gather(*(branch(ctx, key) for key in "xyz"))

    run = Driver(flow)
    assert run.open == ["x1", "y1", "z1"]
    for location in ("y1", "y2", "z1", "x1", "x2", "z2"):
        run.complete(location, location)
    assert run.settled().result == ["x1+x2", "y1+y2", "z1+z2"]


def test_cancelling_a_gather_gives_up_every_step_in_it() -> None:
    async def flow(ctx: Context) -> Any:
        both = asyncio.gather(named(ctx, "a"), named(ctx, "b"))
        await named(ctx, "c")
        both.cancel()
        try:
            await both
        except asyncio.CancelledError:
            return "given up"
        return "not"

    run = Driver(flow)
    run.complete("c")
    assert [operation.location for operation in run.execution.dropped] == ["a", "b"]
    assert run.settled().result == "given up"


@pytest.mark.parametrize(
    ("mode", "first", "expected"),
    [
        (asyncio.FIRST_COMPLETED, "ok", [["a"], ["b", "c"]]),
        (asyncio.FIRST_EXCEPTION, "ok", None),
        (asyncio.FIRST_EXCEPTION, "error", [["a"], ["b", "c"]]),
        (asyncio.ALL_COMPLETED, "error", None),
    ],
)
def test_wait_returns_when_its_mode_says(mode: Any, first: str, expected: list[list[str]] | None) -> None:
    async def flow(ctx: Context) -> list[list[str]]:
        names = {asyncio.ensure_future(named(ctx, name)): name for name in ("a", "b", "c")}
        done, pending = await asyncio.wait(names, return_when=mode)
        for task in pending:
            task.cancel()
        return [sorted(names[task] for task in done), sorted(names[task] for task in pending)]

    run = Driver(flow)
    run.complete("a") if first == "ok" else run.fail("a", ValueError("no"))
    if expected is None:
        assert run.open == ["b", "c"]
        run.complete("b")
        run.complete("c")
        expected = [["a", "b", "c"], []]
    assert run.settled().result == expected


def test_wait_gives_its_done_tasks_in_one_order_for_ever() -> None:
    async def flow(ctx: Context) -> list[list[str]]:
        gate = asyncio.Event()

        async def branch() -> None:
            await gate.wait()

        tasks = [asyncio.create_task(branch(), name=f"t{number}") for number in range(40)]
        await named(ctx, "open")
        gate.set()
        done, _ = await asyncio.wait(tasks)
        return [[task.get_name() for task in done]]

    run = Driver(flow)
    run.complete("open")
    assert sorted(run.result[0]) == sorted(f"t{number}" for number in range(40))
    run.settled()


def test_wait_with_a_timeout_leaves_the_rest_pending() -> None:
    async def flow(ctx: Context) -> list[int]:
        tasks = [named(ctx, "a"), named(ctx, "b")]
        done, pending = await asyncio.wait(tasks, timeout=5)
        before = [len(done), len(pending)]
        await asyncio.wait(pending)
        return before

    run = Driver(flow)
    assert run.open == ["a", "b", "timer"]
    run.complete("b")
    run.fire()
    run.complete("a")
    assert run.settled().result == [1, 1]


def test_as_completed_follows_the_recorded_order() -> None:
    async def flow(ctx: Context) -> Any:
        tasks = [asyncio.create_task(_await(named(ctx, name))) for name in "abc"]
        return [await each for each in asyncio.as_completed(tasks)]

    run = Driver(flow)
    for name in "cab":
        run.complete(name, name.upper())
    assert run.settled().result == ["C", "A", "B"]


def test_as_completed_takes_operations_as_they_are() -> None:
    async def flow(ctx: Context) -> Any:
        return [await each for each in asyncio.as_completed([named(ctx, name) for name in "abc"])]

    run = Driver(flow)
    for name in "bca":
        run.complete(name, name.upper())
    assert run.settled().result == ["B", "C", "A"]


def test_as_completed_times_out_durably() -> None:
    async def flow(ctx: Context) -> Any:
        seen = []
        tasks = [named(ctx, name) for name in "ab"]
        try:
            for each in asyncio.as_completed(tasks, timeout=3):
                seen.append(await each)
        except TimeoutError:
            seen.append("late")
        tasks[1].cancel()
        return seen

    run = Driver(flow)
    run.complete("a", "A")
    run.fire()
    assert run.settled().result == ["A", "late"]


def test_as_completed_over_bare_coroutines_is_refused_with_a_remedy() -> None:
    async def flow(ctx: Context) -> None:
        for each in asyncio.as_completed([_await(named(ctx, "a"))]):
            await each

    run = Driver(flow)
    assert isinstance(run.error, WorkflowError)
    assert "asyncio.create_task" in str(run.error)


def test_a_task_group_waits_for_all_of_its_tasks() -> None:
    async def flow(ctx: Context) -> Any:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(named(ctx, name)) for name in "abc"]
        return [task.result() for task in tasks]

    run = Driver(flow)
    for name in "bca":
        run.complete(name, name.upper())
    assert run.settled().result == ["A", "B", "C"]


def test_a_failing_task_aborts_its_group_in_the_same_order_for_ever() -> None:
    async def branch(ctx: Context, name: str, trace: list[str]) -> None:
        try:
            await named(ctx, name)
        except asyncio.CancelledError:
            trace.append(name)
            raise

    async def flow(ctx: Context) -> Any:
        trace: list[str] = []
        try:
            async with asyncio.TaskGroup() as group:
                for number in range(20):
                    group.create_task(branch(ctx, f"s{number}", trace))
        except* ValueError as errors:
            trace.append(repr(errors.exceptions))
        return trace

    run = Driver(flow)
    run.fail("s7", ValueError("boom"))
    assert len(run.result) == 20
    assert run.result[-1] == "(ValueError('boom'),)"
    run.settled()


def test_cleanup_of_an_aborted_group_may_run_steps() -> None:
    async def guarded(ctx: Context) -> None:
        try:
            await named(ctx, "work")
        finally:
            await named(ctx, "undo")

    async def flow(ctx: Context) -> Any:
        end = "done"
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(guarded(ctx))
                group.create_task(named(ctx, "bad"))
        except* ValueError:
            end = "undone"
        return end

    run = Driver(flow)
    run.fail("bad", ValueError("boom"))
    assert run.open == ["undo"]
    run.complete("undo")
    assert run.settled().result == "undone"


def test_groups_nest() -> None:
    async def inner(ctx: Context, key: str) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(named(ctx, f"{key}1"))
            group.create_task(named(ctx, f"{key}2"))

    async def flow(ctx: Context) -> Any:
        async with asyncio.TaskGroup() as group:
            group.create_task(inner(ctx, "x"))
            group.create_task(inner(ctx, "y"))
        return "all"

    run = Driver(flow)
    for location in ("y2", "x1", "x2", "y1"):
        run.complete(location)
    assert run.settled().result == "all"


def test_tasks_within_tasks_keep_their_order() -> None:
    async def deep(ctx: Context, level: int) -> list[str]:
        if level == 0:
            return [await named(ctx, "leaf")]
        own = asyncio.create_task(deep(ctx, level - 1))
        return [await named(ctx, f"level{level}"), *await own]

    async def flow(ctx: Context) -> Any:
        return await deep(ctx, 3)

    run = Driver(flow)
    assert run.open == ["level3", "level2", "level1", "leaf"]
    for location in ("leaf", "level2", "level3", "level1"):
        run.complete(location, location)
    assert run.settled().result == ["level3", "level2", "level1", "leaf"]


def test_an_async_generator_may_run_steps_between_its_items() -> None:
    async def pages(ctx: Context) -> AsyncIterator[str]:
        for number in range(3):
            yield await named(ctx, f"page{number}")

    async def flow(ctx: Context) -> Any:
        return [page async for page in pages(ctx)]

    run = Driver(flow)
    for number in range(3):
        run.complete(f"page{number}", f"p{number}")
    assert run.settled().result == ["p0", "p1", "p2"]


async def _await(operation: Any) -> Any:
    return await operation
