"""Children that run beside their parent, runs that wait only for such children, and uninterruptible parts."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import pytest

from perdure import Context, workflow
from perdure.core.model.run import Status
from perdure.replay.operations import ChildOperation
from tests.replay.driver import Driver, named


@workflow("test.ship.v1")
async def ship(ctx: Context, weight: int) -> int:
    return weight


def dropped(run: Driver) -> list[str]:
    """Children that the worker is to stop."""
    return [operation.location for operation in run.execution.dropped if isinstance(operation, ChildOperation)]


def test_a_spawned_child_is_awaited_as_often_as_one_likes() -> None:
    async def flow(ctx: Context) -> Any:
        child = ctx.spawn(ship(3))
        await named(ctx, "meanwhile")
        return [await child, await child.result(), await asyncio.gather(child, child)]

    run = Driver(flow)
    assert run.open == ["test.ship.v1", "meanwhile"]
    run.complete("test.ship.v1", 3)
    run.complete("meanwhile")
    assert run.settled().result == [3, 3, [3, 3]]


def test_an_error_of_a_spawned_child_is_raised_wherever_it_is_awaited_and_nowhere_else() -> None:
    async def flow(ctx: Context) -> Any:
        child = ctx.spawn(ship(3))
        ctx.spawn(ship(4))
        caught = []
        for _ in range(2):
            try:
                await child
            except ValueError as error:
                caught.append(str(error))
        return caught

    run = Driver(flow)
    run.fail("test.ship.v1#2", ValueError("not requested"))
    run.fail("test.ship.v1", ValueError("too heavy"))
    assert run.settled().result == ["too heavy", "too heavy"]


def test_giving_up_the_wait_for_a_spawned_child_does_not_stop_it() -> None:
    async def flow(ctx: Context) -> Any:
        child = ctx.spawn(ship(3))
        try:
            async with asyncio.timeout(5):
                await child
        except TimeoutError:
            await named(ctx, "late")
        return await child

    run = Driver(flow)
    run.fire()
    assert dropped(run) == []
    run.complete("late")
    run.complete("test.ship.v1", 3)
    assert run.settled().result == 3


def test_a_child_has_another_id_in_each_generation_of_its_parent() -> None:
    async def flow(ctx: Context) -> Any:
        return [ctx.spawn(ship(3)).id, ctx.start(ship(4))]

    first, second = Driver(flow).result, Driver(flow, generation=2).result
    assert first == ["run-1/test.ship.v1", "run-1/test.ship.v1#2"]
    assert not set(first) & set(second)


def closing(on_close: Literal["cancel", "abandon", "wait"]) -> Any:
    async def flow(ctx: Context) -> Any:
        ctx.spawn(ship(3), on_close=on_close)
        return await named(ctx, "only")

    return flow


@pytest.mark.parametrize(("on_close", "orphans"), [("cancel", ["test.ship.v1"]), ("abandon", [])])
def test_a_workflow_that_ends_leaves_its_children_as_their_policy_says(on_close: Any, orphans: list[str]) -> None:
    run = Driver(closing(on_close))
    run.complete("only", 1)
    assert run.settled().result == 1
    assert [orphan.location for orphan in run.execution.orphans] == orphans


def test_a_workflow_that_has_ended_is_no_run_that_has_ended_while_it_waits_for_its_children() -> None:
    run = Driver(closing("wait"))
    run.complete("only", 1)
    assert run.outcome is None
    assert run.open == ["test.ship.v1"]
    run.message("unheard", "word")
    run.fail("test.ship.v1", ValueError("not the parent's"))
    assert run.settled().result == 1


def test_what_a_workflow_left_lying_is_over_while_its_children_are_waited_for() -> None:
    async def flow(ctx: Context) -> Any:
        ctx.spawn(ship(3), on_close="wait")
        ctx.spawn(ship(4))
        task = asyncio.create_task(asyncio.sleep(60))
        other = asyncio.create_task(ctx.receive("never"))
        await named(ctx, "only")
        return [task.done(), other.done()]

    run = Driver(flow)
    run.complete("only")
    assert run.open == ["test.ship.v1"]
    assert dropped(run) == ["test.ship.v1#2"]
    run.complete("test.ship.v1", 3)
    assert run.settled().result == [False, False]
    assert [orphan.location for orphan in run.execution.orphans] == ["test.ship.v1#2"]


def test_a_cancellation_that_finds_only_children_stops_them_and_waits() -> None:
    run = Driver(closing("wait"))
    run.complete("only", 1)
    run.cancel()
    assert dropped(run) == ["test.ship.v1"]
    assert run.outcome is None
    run.fail("test.ship.v1", ValueError("stopped"))
    assert run.settled().result == 1


def test_a_cancelled_workflow_stops_the_children_that_it_waits_for() -> None:
    run = Driver(closing("wait"))
    run.cancel("enough")
    assert dropped(run) == ["test.ship.v1"]
    run.fail("test.ship.v1", ValueError("stopped"))
    assert run.settled().ended.status is Status.CANCELLED


def test_cleanup_is_not_interrupted_by_another_cancellation() -> None:
    async def flow(ctx: Context) -> Any:
        try:
            await ctx.receive("never")
        finally:
            await named(ctx, "first")
            await named(ctx, "second")

    run = Driver(flow)
    run.cancel("once")
    run.cancel("twice")
    run.complete("first")
    run.cancel("thrice")
    run.complete("second")
    assert run.settled().ended.status is Status.CANCELLED
    assert "once" in str(run.error)


def test_who_has_dealt_with_a_cancellation_may_be_cancelled_again() -> None:
    async def flow(ctx: Context) -> Any:
        try:
            await ctx.receive("never")
        except asyncio.CancelledError:
            current = asyncio.current_task()
            assert current is not None
            current.uncancel()
        await named(ctx, "work")

    run = Driver(flow)
    run.cancel("once")
    assert run.open == ["work"]
    run.cancel("twice")
    assert run.settled().ended.status is Status.CANCELLED
    assert "twice" in str(run.error)


def test_a_cancellation_finds_a_workflow_that_cleans_up_after_a_timeout() -> None:
    async def flow(ctx: Context) -> Any:
        async with asyncio.timeout(5):
            try:
                await ctx.receive("never")
            finally:
                await named(ctx, "cleanup")

    run = Driver(flow)
    run.fire()
    assert run.open == ["cleanup"]
    run.cancel("now")
    assert run.settled().ended.status is Status.CANCELLED


def test_a_shielded_part_is_not_interrupted_by_a_timeout_around_it() -> None:
    async def flow(ctx: Context) -> Any:
        done = []
        try:
            async with asyncio.timeout(5):
                done.append(await ctx.shield(named(ctx, "part")))
        except TimeoutError:
            return [*done, "late"]
        return done

    run = Driver(flow)
    run.fire()
    assert run.open == ["part"]
    run.complete("part", 1)
    assert run.settled().result == ["late"]


def test_a_shielded_part_that_is_done_in_time_gives_its_result() -> None:
    async def flow(ctx: Context) -> Any:
        async def part() -> int:
            return int(await named(ctx, "one")) + int(await named(ctx, "two"))

        async with asyncio.timeout(5):
            return await ctx.shield(part())

    run = Driver(flow)
    run.complete("one", 1)
    run.complete("two", 2)
    assert run.settled().result == 3


def test_a_shielded_part_of_a_cancelled_run_goes_to_its_end() -> None:
    async def flow(ctx: Context) -> Any:
        async def part() -> None:
            await named(ctx, "one")
            await named(ctx, "two")

        await ctx.shield(part())
        await named(ctx, "never")

    run = Driver(flow)
    run.cancel("stop")
    run.complete("one")
    run.cancel("stop at once")
    run.complete("two")
    assert run.settled().ended.status is Status.CANCELLED


def test_an_error_of_a_shielded_part_is_the_cause_of_the_cancellation_that_waited_for_it() -> None:
    async def flow(ctx: Context) -> Any:
        try:
            await ctx.shield(named(ctx, "part"))
        except asyncio.CancelledError as error:
            return repr(error.__cause__)
        return "impossible"

    run = Driver(flow)
    run.cancel("stop")
    run.fail("part", ValueError("broken"))
    assert run.settled().partial == "ValueError('broken')"
