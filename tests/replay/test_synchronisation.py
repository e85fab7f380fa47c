"""asyncio's locks and queues work between the branches of a run, and hand over in the same order on replay."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from perdure import Context
from tests.replay.driver import Driver, named


def test_a_lock_lets_the_branches_in_one_by_one() -> None:
    async def branch(ctx: Context, lock: asyncio.Lock, key: str) -> None:
        await named(ctx, f"ready-{key}")
        async with lock:
            await named(ctx, f"work-{key}")

    async def flow(ctx: Context) -> None:
        lock = asyncio.Lock()
        await asyncio.gather(*(branch(ctx, lock, key) for key in "abc"))

    run = Driver(flow)
    for key in "cab":
        run.complete(f"ready-{key}")
    for key in "cab":
        assert run.open == [f"work-{key}"]
        run.complete(f"work-{key}")
    assert run.settled().result is None


@pytest.mark.parametrize("kind", [asyncio.Semaphore, asyncio.BoundedSemaphore])
def test_a_semaphore_bounds_what_runs_at_once(kind: type[asyncio.Semaphore]) -> None:
    async def branch(ctx: Context, gate: asyncio.Semaphore, number: int) -> None:
        async with gate:
            await named(ctx, f"s{number}")

    async def flow(ctx: Context) -> None:
        gate = kind(2)
        await asyncio.gather(*(branch(ctx, gate, number) for number in range(5)))

    run = Driver(flow)
    assert run.open == ["s0", "s1"]
    run.complete("s1")
    assert run.open == ["s0", "s2"]
    for location in ("s2", "s0", "s4", "s3"):
        run.complete(location)
    assert run.settled().result is None


def test_a_bounded_semaphore_refuses_to_be_released_too_often() -> None:
    async def flow(ctx: Context) -> None:
        asyncio.BoundedSemaphore(1).release()

    assert isinstance(Driver(flow).error, ValueError)


def test_an_event_wakes_everyone_who_waits_in_their_order() -> None:
    async def waiter(event: asyncio.Event, trace: list[int], number: int) -> None:
        await event.wait()
        trace.append(number)

    async def flow(ctx: Context) -> list[int]:
        event, trace = asyncio.Event(), list[int]()
        tasks = [asyncio.create_task(waiter(event, trace, number)) for number in range(8)]
        await named(ctx, "go")
        event.set()
        await asyncio.gather(*tasks)
        return trace

    run = Driver(flow)
    run.complete("go")
    assert run.settled().result == list(range(8))


def test_a_condition_notifies_as_many_as_it_is_told() -> None:
    async def waiter(condition: asyncio.Condition, trace: list[int], number: int) -> None:
        async with condition:
            await condition.wait()
            trace.append(number)

    async def flow(ctx: Context) -> list[int]:
        condition, trace = asyncio.Condition(), list[int]()
        tasks = [asyncio.create_task(waiter(condition, trace, number)) for number in range(4)]
        await named(ctx, "one")
        async with condition:
            condition.notify(1)
        await named(ctx, "all")
        trace.append(-1)
        async with condition:
            condition.notify_all()
        await asyncio.gather(*tasks)
        return trace

    run = Driver(flow)
    run.complete("one")
    run.complete("all")
    assert run.settled().result == [0, -1, 1, 2, 3]


def test_a_barrier_holds_until_all_are_there() -> None:
    async def branch(ctx: Context, barrier: asyncio.Barrier, key: str) -> int:
        await named(ctx, f"to-{key}")
        position = await barrier.wait()
        await named(ctx, f"from-{key}")
        return position

    async def flow(ctx: Context) -> list[int]:
        barrier = asyncio.Barrier(3)
        return await asyncio.gather(*(branch(ctx, barrier, key) for key in "abc"))

    run = Driver(flow)
    run.complete("to-b")
    run.complete("to-c")
    assert run.open == ["to-a"]
    run.complete("to-a")
    assert sorted(run.open) == ["from-a", "from-b", "from-c"]
    for key in "cab":
        run.complete(f"from-{key}")
    assert run.settled().result == [2, 0, 1]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (asyncio.Queue, [3, 1, 2]),
        (asyncio.PriorityQueue, [1, 2, 3]),
        (asyncio.LifoQueue, [2, 1, 3]),
    ],
)
def test_a_queue_hands_over_in_its_order(kind: type[asyncio.Queue[int]], expected: list[int]) -> None:
    async def flow(ctx: Context) -> list[int]:
        queue = kind()
        for number in (3, 1, 2):
            await queue.put(number)
        await named(ctx, "between")
        return [await queue.get() for _ in range(3)]

    run = Driver(flow)
    run.complete("between")
    assert run.settled().result == expected


def test_a_bounded_queue_holds_its_producer_back() -> None:
    async def producer(ctx: Context, queue: asyncio.Queue[str]) -> None:
        for number in range(4):
            await queue.put(await named(ctx, f"make{number}"))

    async def consumer(ctx: Context, queue: asyncio.Queue[str]) -> list[str]:
        used = []
        for number in range(4):
            used.append(await queue.get())
            await named(ctx, f"use{number}")
            queue.task_done()
        return used

    async def flow(ctx: Context) -> Any:
        queue = asyncio.Queue[str](maxsize=1)
        async with asyncio.TaskGroup() as group:
            group.create_task(producer(ctx, queue))
            used = group.create_task(consumer(ctx, queue))
        await queue.join()
        return used.result()

    run = Driver(flow)
    for number in range(3):
        run.complete(f"make{number}", f"m{number}")
    assert run.open == ["use0"], "the queue is full, so the producer waits"
    run.complete("use0")
    run.complete("make3", "m3")
    for number in (1, 2, 3):
        run.complete(f"use{number}")
    assert run.settled().result == ["m0", "m1", "m2", "m3"]


def test_a_cancelled_waiter_leaves_the_lock_to_the_next() -> None:
    async def holder(ctx: Context, lock: asyncio.Lock, key: str) -> Any:
        async with lock:
            return await named(ctx, key)

    async def flow(ctx: Context) -> Any:
        lock = asyncio.Lock()
        first, second, third = (asyncio.create_task(holder(ctx, lock, key)) for key in ("one", "two", "three"))
        await named(ctx, "tick")
        second.cancel()
        results = await asyncio.gather(first, second, third, return_exceptions=True)
        return [result if isinstance(result, int) else type(result).__name__ for result in results]

    run = Driver(flow)
    run.complete("tick")
    run.complete("one", 1)
    assert run.open == ["three"]
    run.complete("three", 3)
    assert run.settled().result == [1, "CancelledError", 3]


def test_an_async_context_manager_may_run_steps_on_both_ends() -> None:
    @asynccontextmanager
    async def reservation(ctx: Context) -> AsyncIterator[str]:
        ticket = await named(ctx, "reserve")
        try:
            yield ticket
        finally:
            await named(ctx, "release", ticket)

    async def flow(ctx: Context) -> Any:
        try:
            async with reservation(ctx) as ticket:
                await named(ctx, "use", ticket)
        except ValueError:
            return "failed"
        return "used"

    run = Driver(flow)
    run.complete("reserve", "t-1")
    run.fail("use", ValueError("no"))
    assert run.open == ["release"]
    run.complete("release")
    assert run.settled().result == "failed"


def test_an_abandoned_generator_is_not_ended_by_the_garbage_collector() -> None:
    trace: list[str] = []

    async def numbers(ctx: Context) -> AsyncIterator[int]:
        try:
            for number in range(10):
                yield await named(ctx, f"n{number}")
        finally:
            trace.append("closed")

    async def flow(ctx: Context) -> Any:
        async for number in numbers(ctx):
            if number == 1:
                break
        trace.append("left")
        return await named(ctx, "after")

    run = Driver(flow)
    run.complete("n0", 0)
    run.complete("n1", 1)
    assert trace == ["left"]
    run.complete("after", "end")
    assert trace == ["left", "closed"]
    assert run.settled().result == "end"


def test_a_generator_that_is_closed_by_hand_ends_there() -> None:
    async def numbers(ctx: Context) -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
        finally:
            await named(ctx, "cleanup")

    async def flow(ctx: Context) -> Any:
        generator: Any = numbers(ctx)
        async for _ in generator:
            break
        await generator.aclose()
        return "closed"

    run = Driver(flow)
    assert run.open == ["cleanup"]
    run.complete("cleanup")
    assert run.settled().result == "closed"


variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


def test_context_variables_belong_to_their_branch() -> None:
    async def branch(ctx: Context, value: str) -> list[str]:
        before = variable.get()
        variable.set(value)
        await named(ctx, f"s-{value}")
        return [before, variable.get()]

    async def flow(ctx: Context) -> Any:
        variable.set("main")
        return [*await asyncio.gather(branch(ctx, "x"), branch(ctx, "y")), variable.get()]

    run = Driver(flow)
    run.complete("s-y")
    run.complete("s-x")
    assert run.settled().result == [["main", "x"], ["main", "y"], "main"]


def test_context_variables_of_the_worker_do_not_reach_the_run_nor_the_other_way_round() -> None:
    async def flow(ctx: Context) -> Any:
        seen = variable.get()
        variable.set("inside")
        await named(ctx, "a")
        return seen

    token = variable.set("outside")
    try:
        run = Driver(flow)
        run.complete("a")
        assert variable.get() == "outside"
        assert run.settled().result == "unset"
    finally:
        variable.reset(token)


def test_a_callback_that_was_called_off_says_so_and_is_not_called() -> None:
    called: list[str] = []

    async def flow(ctx: Context) -> list[bool]:
        loop = asyncio.get_running_loop()
        kept, dropped = loop.call_soon(called.append, "kept"), loop.call_soon(called.append, "dropped")
        dropped.cancel()
        await named(ctx, "a")
        return [kept.cancelled(), dropped.cancelled()]

    run = Driver(flow)
    assert called == ["kept"]
    run.complete("a")
    assert run.settled().result == [False, True]
