"""Child runs, seen from their parent."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from perdure import Context, workflow
from perdure.core.model.record import RecordKind
from perdure.errors import BadArguments, StepFailed
from perdure.replay.operations import ChildOperation
from perdure.workflow.definition import Call
from tests.replay.driver import BEGINNING, SECOND, START, Driver, named


@dataclass
class Parcel:
    weight: int


@workflow("test.ship.v1")
async def ship(ctx: Context, weight: int) -> Parcel:
    return Parcel(weight)


def child(run: Driver, location: str) -> ChildOperation:
    operation = run.operation(location)
    assert isinstance(operation, ChildOperation)
    return operation


def test_a_childs_result_is_decoded_to_what_its_workflow_returns() -> None:
    async def flow(ctx: Context) -> Any:
        return repr(await ctx.call(ship(3)))

    run = Driver(flow)
    assert run.open == ["test.ship.v1"]
    assert child(run, "test.ship.v1").child_id == "run-1/test.ship.v1"
    run.complete("test.ship.v1", {"weight": 3})
    assert run.settled().result == "Parcel(weight=3)"


def test_a_child_known_by_name_alone_gives_plain_values() -> None:
    async def flow(ctx: Context) -> Any:
        return await ctx.call(Call.named("elsewhere.v1", 1, 2))

    run = Driver(flow)
    run.complete("elsewhere.v1", {"weight": 3})
    assert run.settled().result == {"weight": 3}


def test_children_of_one_type_are_counted_and_have_ids_of_their_own() -> None:
    async def flow(ctx: Context) -> Any:
        parcels = await asyncio.gather(*(ctx.call(ship(weight)) for weight in (1, 2, 3)))
        return [parcel.weight for parcel in parcels]

    run = Driver(flow)
    assert [child(run, location).child_id for location in run.open] == [
        "run-1/test.ship.v1",
        "run-1/test.ship.v1#2",
        "run-1/test.ship.v1#3",
    ]
    run.complete("test.ship.v1#2", {"weight": 20})
    run.complete("test.ship.v1#3", {"weight": 30})
    run.complete("test.ship.v1", {"weight": 10})
    assert run.settled().result == [10, 20, 30]


def test_a_childs_error_is_raised_in_the_parent() -> None:
    async def flow(ctx: Context) -> Any:
        try:
            await ctx.call(ship(1))
        except ValueError as error:
            return repr(error)
        return None

    run = Driver(flow)
    run.fail("test.ship.v1", ValueError("too heavy"))
    assert run.settled().result == "ValueError('too heavy')"


def test_a_cancelled_child_does_not_cancel_its_parent() -> None:
    async def flow(ctx: Context) -> Any:
        try:
            await ctx.call(ship(1))
        except StepFailed as error:
            return type(error).__name__
        return None

    run = Driver(flow)
    run.fail("test.ship.v1", asyncio.CancelledError("stopped"))
    assert run.settled().result == "StepFailed"


def test_options_of_a_child_are_its_own() -> None:
    async def flow(ctx: Context) -> Any:
        calls = (
            ctx.call(ship(1), id="parcel-1", queue="heavy", priority=5, deadline="1h"),
            ctx.call(ship(1), deadline=BEGINNING + timedelta(days=1)),
        )
        await asyncio.gather(*calls)

    run = Driver(flow)
    first, second = (child(run, location) for location in run.open)
    assert first.child_id == "parcel-1"
    assert (first.options.queue, first.options.priority) == ("heavy", 5)
    assert first.options.deadline == START + 3600 * SECOND
    assert second.options.deadline == START + 86400 * SECOND
    assert run.execution.evict()


def test_giving_up_a_child_is_told_to_the_worker_and_its_late_result_is_dropped() -> None:
    async def flow(ctx: Context) -> Any:
        try:
            async with asyncio.timeout(10):
                await ctx.call(ship(1))
        except TimeoutError:
            return await named(ctx, "instead")
        return None

    run = Driver(flow)
    run.fire()
    assert [operation.location for operation in run.execution.dropped] == ["test.ship.v1"]
    run.late("test.ship.v1")
    run.complete("instead", "other")
    assert run.settled().result == "other"


def test_wrong_arguments_for_a_child_are_refused_when_the_call_is_built() -> None:
    async def flow(ctx: Context) -> Any:
        try:
            await ctx.call(ship("a", "b"))  # type: ignore[arg-type, call-arg] # wrong on purpose
        except BadArguments as error:
            return str(error)
        return None

    assert "test.ship.v1()" in Driver(flow).result


def test_a_result_that_came_before_the_next_attempt_asked_for_it_is_handed_over_at_once() -> None:
    async def flow(ctx: Context) -> Any:
        await named(ctx, "first")
        parcel = await ctx.call(ship(1))
        return [parcel.weight, await named(ctx, "last")]

    run = Driver(flow, attempt=2)
    run.execution.record(RecordKind.CHILD, "test.ship.v1", '{"weight":7}', 0)
    run.complete("first")
    assert run.open == ["last"]
    run.complete("last", "end")
    assert run.result == [7, "end"]


def test_a_child_that_is_opened_again_and_ends_again_changes_nothing_for_its_parent() -> None:
    async def flow(ctx: Context) -> Any:
        first = await ctx.call(ship(3))
        await named(ctx, "after")
        return first.weight

    run = Driver(flow)
    run.complete("test.ship.v1", {"weight": 3})
    run.late("test.ship.v1")
    run.complete("after")
    assert run.settled().result == 3
