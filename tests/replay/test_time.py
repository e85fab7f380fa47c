"""Time in a workflow is what the history says, and every way to wait for it is a durable timer."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any

import pytest

from perdure import Context
from perdure.core.model.record import RecordKind
from perdure.core.time.duration import NEVER
from perdure.errors import Diverged, InvalidDuration
from perdure.replay.operations import TimerOperation
from tests.replay.driver import BEGINNING, SECOND, START, Driver, named


def due(run: Driver, location: str) -> float:
    operation = run.operation(location)
    assert isinstance(operation, TimerOperation)
    return (operation.due - START) / SECOND


def test_asyncio_sleep_is_a_durable_timer() -> None:
    async def flow(ctx: Context) -> Any:
        await asyncio.sleep(3 * 86400)
        return ctx.now().isoformat()

    run = Driver(flow)
    assert run.open == ["sleep"]
    assert due(run, "sleep") == 3 * 86400
    run.fire()
    assert [record.kind for record in run.history] == [RecordKind.TIMER]
    assert run.settled().result == "2024-01-04T00:00:00+00:00"


def test_asyncio_sleep_gives_its_result() -> None:
    async def flow(ctx: Context) -> Any:
        return await asyncio.sleep(1, "rested")

    run = Driver(flow)
    run.fire()
    assert run.settled().result == "rested"


def test_both_sleeps_share_one_line_of_names_so_that_either_can_become_the_other() -> None:
    async def before(ctx: Context) -> str:
        await ctx.sleep("1h")
        await asyncio.sleep(60)
        return "woken"

    async def after(ctx: Context) -> str:
        await asyncio.sleep(3600)
        await ctx.sleep("1m")
        return "woken"

    run = Driver(before)
    assert [run.fire(), run.fire()] == ["sleep", "sleep#2"]
    assert Driver(after, history=run.history).result == "woken"


def test_a_bare_yield_costs_no_record() -> None:
    async def flow(ctx: Context) -> Any:
        trace: list[str] = []

        async def branch(name: str) -> None:
            for turn in range(3):
                trace.append(f"{name}{turn}")
                await asyncio.sleep(0)

        await asyncio.gather(branch("a"), branch("b"))
        return trace

    run = Driver(flow)
    assert run.history == []
    assert run.result == ["a0", "b0", "a1", "b1", "a2", "b2"]


def test_sleep_until_waits_for_a_moment() -> None:
    async def flow(ctx: Context) -> Any:
        await ctx.sleep_until(BEGINNING + timedelta(hours=2))
        return ctx.now().isoformat()

    run = Driver(flow)
    assert due(run, "sleep") == 7200
    run.fire()
    assert run.settled().result == "2024-01-01T02:00:00+00:00"


def test_a_moment_without_a_time_zone_is_refused() -> None:
    async def flow(ctx: Context) -> None:
        await ctx.sleep_until(BEGINNING.replace(tzinfo=None))

    assert isinstance(Driver(flow).error, InvalidDuration)


def test_an_endless_sleep_is_due_never() -> None:
    async def flow(ctx: Context) -> None:
        await asyncio.sleep(float("inf"))

    run = Driver(flow)
    operation = run.operation("sleep")
    assert isinstance(operation, TimerOperation)
    assert operation.due == NEVER
    run.settled()
    assert run.execution.evict()


def test_equal_deadlines_fire_in_the_order_in_which_they_were_set() -> None:
    async def sleeper(trace: list[int], number: int) -> None:
        await asyncio.sleep(5)
        trace.append(number)

    async def flow(ctx: Context) -> list[int]:
        trace: list[int] = []
        await asyncio.gather(*(sleeper(trace, number) for number in range(12)))
        return trace

    run = Driver(flow)
    for _ in range(12):
        run.fire()
    assert run.settled().result == list(range(12))


def test_the_earliest_timer_goes_first_in_whatever_order_they_were_set() -> None:
    async def flow(ctx: Context) -> Any:
        trace: list[str] = []

        async def sleeper(seconds: float, name: str) -> None:
            await ctx.sleep(seconds)
            trace.append(name)

        await asyncio.gather(sleeper(30, "c"), sleeper(10, "a"), sleeper(20, "b"))
        return trace

    run = Driver(flow)
    assert [run.fire() for _ in range(3)] == ["sleep#2", "sleep#3", "sleep"]
    assert run.settled().result == ["a", "b", "c"]


def test_time_stands_still_between_records() -> None:
    async def flow(ctx: Context) -> Any:
        loop = asyncio.get_running_loop()
        seen = [ctx.now().isoformat(), loop.time()]
        await asyncio.sleep(0)
        seen += [ctx.now().isoformat(), loop.time()]
        await named(ctx, "a")
        return [*seen, ctx.now().isoformat(), loop.time()]

    run = Driver(flow)
    run.complete("a", after=1.5)
    start, later = "2024-01-01T00:00:00+00:00", "2024-01-01T00:00:01.500000+00:00"
    assert run.settled().result == [start, 0, start, 0, later, 1.5]


def test_time_never_goes_back() -> None:
    async def flow(ctx: Context) -> Any:
        await named(ctx, "a")
        first = ctx.now()
        await named(ctx, "b")
        return [first.isoformat(), ctx.now().isoformat()]

    run = Driver(flow)
    run.complete("a", after=10)
    run.complete("b", after=-5)
    assert run.history[1].at == run.history[0].at
    assert run.settled().result == ["2024-01-01T00:00:10+00:00"] * 2


def test_a_timeout_that_fires_gives_up_the_step() -> None:
    async def flow(ctx: Context) -> Any:
        try:
            async with asyncio.timeout(30):
                await named(ctx, "slow")
        except TimeoutError:
            return await named(ctx, "instead")
        return "in time"

    run = Driver(flow)
    assert run.open == ["timer", "slow"]
    run.fire()
    assert [operation.location for operation in run.execution.dropped] == ["slow"]
    run.complete("instead", "other")
    assert run.settled().result == "other"


def test_a_timeout_that_is_not_needed_leaves_nothing_behind() -> None:
    async def flow(ctx: Context) -> Any:
        async with asyncio.timeout(30):
            first = await named(ctx, "quick")
        return f"{first} {await named(ctx, 'after')}"

    run = Driver(flow)
    run.complete("quick", "in time")
    assert run.open == ["after"]
    run.complete("after", "and gone")
    assert run.settled().result == "in time and gone"


def test_timeout_at_takes_the_loops_time() -> None:
    async def flow(ctx: Context) -> Any:
        await named(ctx, "first")
        try:
            async with asyncio.timeout_at(asyncio.get_running_loop().time() + 5):
                await named(ctx, "slow")
        except TimeoutError:
            return "late"
        return "in time"

    run = Driver(flow)
    run.complete("first", after=2)
    assert due(run, "timer") == 7
    run.fire()
    assert run.settled().result == "late"


def test_a_timeout_can_be_moved() -> None:
    async def flow(ctx: Context) -> Any:
        try:
            async with asyncio.timeout(10) as limit:
                await named(ctx, "first")
                limit.reschedule(asyncio.get_running_loop().time() + 100)
                await named(ctx, "second")
        except TimeoutError:
            return "late"
        return "in time"

    run = Driver(flow)
    run.complete("first", after=5)
    assert run.open == ["timer#2", "second"]
    assert due(run, "timer#2") == 105
    run.fire()
    assert run.settled().result == "late"


def test_timeouts_nest() -> None:
    async def flow(ctx: Context) -> Any:
        trace = []
        try:
            async with asyncio.timeout(60):
                try:
                    async with asyncio.timeout(10):
                        await named(ctx, "a")
                except TimeoutError:
                    trace.append("inner")
                await named(ctx, "b")
        except TimeoutError:
            trace.append("outer")
        return trace

    run = Driver(flow)
    assert run.fire() == "timer#2"
    assert run.fire() == "timer"
    assert run.settled().result == ["inner", "outer"]


@pytest.mark.parametrize("in_time", [True, False])
def test_wait_for_is_durable(in_time: bool) -> None:
    async def flow(ctx: Context) -> Any:
        try:
            return await asyncio.wait_for(named(ctx, "a"), 5)
        except TimeoutError:
            return "late"

    run = Driver(flow)
    assert sorted(run.open) == ["a", "timer"]
    run.complete("a", "in time") if in_time else run.fire()
    assert run.open == []
    assert run.settled().result == ("in time" if in_time else "late")


def test_a_shielded_step_outlives_the_timeout_around_it() -> None:
    async def flow(ctx: Context) -> Any:
        work = named(ctx, "work")
        try:
            await asyncio.wait_for(asyncio.shield(work), 5)
        except TimeoutError:
            return ["waited", await work]
        return []

    run = Driver(flow)
    run.fire()
    assert run.open == ["work"]
    run.complete("work", "finished")
    assert run.settled().result == ["waited", "finished"]


def test_a_timer_of_the_loop_can_be_called_off() -> None:
    async def flow(ctx: Context) -> Any:
        trace: list[str] = []
        loop = asyncio.get_running_loop()
        loop.call_later(5, trace.append, "five")
        loop.call_later(6, trace.append, "six").cancel()
        loop.call_at(7, trace.append, "seven")
        await ctx.sleep(8)
        return trace

    run = Driver(flow)
    assert run.open == ["timer", "timer#3", "sleep"]
    for _ in range(3):
        run.fire()
    assert run.settled().result == ["five", "seven"]


def test_a_cancelled_sleep_is_no_longer_due() -> None:
    async def flow(ctx: Context) -> Any:
        nap = asyncio.create_task(asyncio.sleep(1))
        other = ctx.sleep(2)
        await named(ctx, "a")
        nap.cancel()
        other.cancel()
        return await named(ctx, "b")

    run = Driver(flow)
    run.complete("a")
    assert run.open == ["b"]
    assert run.execution.next_timer() is None
    run.complete("b", "end")
    assert run.settled().result == "end"


def test_a_sleep_whose_end_was_moved_replays_as_it_was_moved() -> None:
    async def flow(ctx: Context) -> Any:
        await asyncio.gather(ctx.sleep("1h"), asyncio.sleep(60))
        return ctx.now()

    run = Driver(flow, returns=datetime)
    first = run.execution.sleep()
    assert first is not None
    run.wake(first.location, run.execution.time + 5 * SECOND)
    assert run.fire() == first.location
    run.wake("sleep", run.execution.time + 7200 * SECOND)
    run.fire()
    assert run.settled().result == (BEGINNING + timedelta(seconds=7205)).isoformat().replace("+00:00", "Z")


def test_a_timer_that_bounds_something_is_no_sleep() -> None:
    async def flow(ctx: Context) -> Any:
        async with asyncio.timeout(5):
            await ctx.receive("never", timeout="1h")

    assert Driver(flow).execution.sleep() is None


def test_a_sleep_that_was_moved_and_is_not_there_diverges() -> None:
    async def before(ctx: Context) -> Any:
        await ctx.sleep("1h")

    async def after(ctx: Context) -> Any:
        await named(ctx, "no sleep")

    run = Driver(before)
    run.wake("sleep", run.execution.time)
    with pytest.raises(Diverged, match="sleep"):
        Driver(after, history=run.history)
