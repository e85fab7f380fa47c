"""Ends of workflows: a result, an error, a cancellation, or an operation that was never awaited."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from typing import Any

import pytest
from msgspec.structs import replace

from perdure import Context, workflow
from perdure.core.codec.failure import ErrorTypes, Failure
from perdure.core.model.record import RecordKind
from perdure.core.model.run import Status
from perdure.errors import BadArguments, EncodeError, Fatal, NeverAwaited, StepFailed
from perdure.replay.operations import StepOperation
from perdure.replay.run_loop import DrainContext
from tests.replay.driver import Driver, named


@dataclass
class Point:
    x: int
    y: int


class Unknown(Exception):
    pass


async def typed(x: int) -> tuple[Point, ...]:
    return (Point(x, x),)


@workflow("test.anew.v1")
async def anew(ctx: Context, value: object) -> None:
    pass


def test_a_run_that_continues_with_what_cannot_be_stored_fails() -> None:
    async def flow(ctx: Context) -> None:
        ctx.continue_as_new(anew(object()))

    assert isinstance(Driver(flow).error, EncodeError)


def test_a_result_is_stored_as_json() -> None:
    async def flow(ctx: Context) -> Point:
        return Point(1, 2)

    assert Driver(flow, returns=Point).ended.payload == '{"x":1,"y":2}'


def test_a_result_of_another_type_than_declared_fails_the_run() -> None:
    async def flow(ctx: Context) -> Point:
        return "not a point"  # type: ignore[return-value] # wrong on purpose

    run = Driver(flow, returns=Point)
    assert run.ended.status is Status.FAILED
    assert isinstance(run.error, BadArguments)
    assert "test.flow.v1" in str(run.error)
    assert "run-1" in str(run.error)


def test_a_result_that_cannot_be_stored_fails_the_run_and_names_the_place() -> None:
    async def flow(ctx: Context) -> Any:
        return {"price": math.nan}

    run = Driver(flow)
    assert isinstance(run.error, EncodeError)
    assert "price" in str(run.error)


def test_the_workflow_sees_decoded_values_live_as_on_replay() -> None:
    async def flow(ctx: Context) -> Any:
        return [repr(await ctx.step(typed, 3)), repr(await named(ctx, "loose"))]

    run = Driver(flow)
    run.complete("typed", (Point(3, 3),))
    run.complete("loose", (1, 2))
    assert run.settled().result == ["(Point(x=3, y=3),)", "[1, 2]"]


def test_an_error_of_a_known_class_comes_back_as_itself() -> None:
    async def flow(ctx: Context) -> Any:
        try:
            await named(ctx, "a")
        except KeyError as error:
            return repr(error)
        return ""

    run = Driver(flow)
    run.fail("a", KeyError("missing"))
    assert run.settled().result == "KeyError('missing')"


def test_an_error_of_an_unknown_class_comes_back_with_its_name() -> None:
    async def flow(ctx: Context) -> Any:
        try:
            await named(ctx, "a")
        except StepFailed as error:
            assert error.failure is not None
            return [str(error), error.failure.type]
        return []

    run = Driver(flow, errors=ErrorTypes())
    run.fail("a", Unknown("odd"))
    assert run.settled().result == [f"{__name__}.Unknown: odd", f"{__name__}.Unknown"]


def test_an_error_that_leaves_the_workflow_is_its_outcome() -> None:
    async def flow(ctx: Context) -> None:
        await named(ctx, "a")
        raise Fatal("enough")

    run = Driver(flow)
    run.complete("a")
    assert run.ended.status is Status.FAILED
    assert Failure.from_json(run.ended.payload or "").message == "enough"
    assert isinstance(run.settled().error, Fatal)


def test_an_error_out_of_a_branch_carries_to_the_code_that_awaits_it() -> None:
    async def branch(ctx: Context) -> None:
        await named(ctx, "a")
        raise LookupError("in the branch")

    async def flow(ctx: Context) -> Any:
        task = asyncio.create_task(branch(ctx))
        await named(ctx, "b")
        try:
            await task
        except LookupError as error:
            return str(error)
        return ""

    run = Driver(flow)
    run.complete("a")
    run.complete("b")
    assert run.settled().result == "in the branch"


def test_even_system_exit_is_only_the_runs_outcome() -> None:
    async def flow(ctx: Context) -> None:
        await named(ctx, "a")
        raise SystemExit(3)

    run = Driver(flow)
    run.complete("a")
    assert run.settled().ended.status is Status.FAILED


def test_an_operation_that_is_never_awaited_is_an_error_that_names_it() -> None:
    async def flow(ctx: Context) -> Any:
        named(ctx, "charge")
        ctx.sleep(5)
        ctx.receive("approval")
        await named(ctx, "ship")
        return "done"

    run = Driver(flow)
    run.complete("ship")
    assert isinstance(run.error, NeverAwaited)
    for name in ("charge", "sleep", "approval"):
        assert name in str(run.error)
    assert "ship" not in str(run.error)
    run.settled()


def test_an_operation_that_succeeded_unawaited_is_named() -> None:
    async def flow(ctx: Context) -> Any:
        named(ctx, "charge")
        return await named(ctx, "ship")

    run = Driver(flow)
    for name in ("charge", "ship"):
        operation, now = run.operation(name), run.execution.time
        assert isinstance(operation, StepOperation)
        # As a worker does with a step that succeeded.
        with DrainContext() as context:
            run.execution.step_succeeded(operation, "1", 1, now, now, 1, context)
    assert isinstance(run.error, NeverAwaited)
    assert "charge" in str(run.error)
    assert "ship" not in str(run.error)


def test_an_operation_that_failed_unawaited_is_named_and_not_printed(capsys: pytest.CaptureFixture[str]) -> None:
    async def flow(ctx: Context) -> Any:
        named(ctx, "charge")
        await named(ctx, "ship")
        return "done"

    run = Driver(flow)
    run.fail("charge", ValueError("declined"))
    run.complete("ship")
    assert isinstance(run.error, NeverAwaited)
    assert capsys.readouterr().err == ""


def test_operations_that_were_awaited_in_any_way_are_not_forgotten() -> None:
    async def flow(ctx: Context) -> Any:
        watched = named(ctx, "watched")
        watched.add_done_callback(lambda _: None)
        given_up = named(ctx, "given-up")
        given_up.cancel()
        await asyncio.gather(named(ctx, "gathered"), ctx.sleep(1))
        return "done"

    run = Driver(flow)
    run.complete("gathered")
    run.fire()
    assert run.result == "done"


def test_operations_that_are_awaited_only_when_they_are_done_are_not_forgotten() -> None:
    async def flow(ctx: Context) -> Any:
        first, second, third = named(ctx, "first"), named(ctx, "second"), ctx.receive("approval")
        await named(ctx, "ship")
        assert all(operation.done() for operation in (first, second, third))
        await asyncio.gather(first, third)
        await second
        return "done"

    run = Driver(flow)
    run.complete("first")
    run.complete("second")
    run.message("approval", 1)
    run.complete("ship")
    assert run.result == "done"


def test_an_operation_that_was_waited_for_in_vain_is_not_forgotten() -> None:
    async def flow(ctx: Context) -> Any:
        slow, slower = named(ctx, "slow"), named(ctx, "slower")
        _, pending = await asyncio.wait([slow, slower, named(ctx, "quick")], return_when=asyncio.FIRST_COMPLETED)
        assert pending == {slow, slower}
        await named(ctx, "ship")
        return "done"

    run = Driver(flow)
    run.complete("quick")
    run.complete("slow")
    run.complete("ship")
    assert run.result == "done"


def test_an_operation_that_another_task_waits_for_is_not_forgotten() -> None:
    async def flow(ctx: Context) -> Any:
        async def wait_for(operation: Any) -> None:
            await operation

        waiting = asyncio.create_task(wait_for(named(ctx, "charge")))
        await named(ctx, "ship")
        return waiting.done()

    run = Driver(flow)
    run.complete("ship")
    assert run.result is False


def test_operations_that_the_engine_itself_keeps_an_eye_on_are_forgotten_if_the_workflow_awaits_them_never() -> None:
    async def flow(ctx: Context) -> Any:
        ctx.options(undo=typed).step(typed, 1)
        ctx.receive("approval", timeout=60)
        await named(ctx, "ship")
        return "done"

    run = Driver(flow)
    run.complete("typed", [{"x": 1, "y": 1}])
    run.message("approval", 1)
    run.complete("ship")
    run.complete("typed/~undo", [])
    assert isinstance(run.error, NeverAwaited)
    for name in ("typed", "approval"):
        assert name in str(run.error)


def test_operations_of_a_workflow_that_fails_are_not_called_forgotten() -> None:
    async def flow(ctx: Context) -> Any:
        named(ctx, "charge")
        raise ValueError("its own")

    assert str(Driver(flow).error) == "its own"


def test_a_cancellation_reaches_the_workflow_with_its_reason() -> None:
    reasons = []

    async def flow(ctx: Context) -> None:
        try:
            await named(ctx, "a")
        except asyncio.CancelledError as error:
            reasons.append(error.args)
            raise

    run = Driver(flow)
    run.cancel("customer left")
    assert run.ended.status is Status.CANCELLED
    assert reasons == [("customer left",)]
    assert "customer left" in str(run.error)
    assert [operation.location for operation in run.execution.dropped] == ["a"]
    run.settled()


def test_cleanup_after_a_cancellation_may_run_steps() -> None:
    async def flow(ctx: Context) -> None:
        try:
            await named(ctx, "work")
        finally:
            await named(ctx, "undo")
            await asyncio.sleep(5)
            await named(ctx, "tell")

    run = Driver(flow)
    run.cancel()
    assert run.open == ["undo"]
    run.complete("undo")
    assert run.fire() == "sleep"
    run.complete("tell")
    assert run.settled().ended.status is Status.CANCELLED


async def _instead(ctx: Context) -> Any:
    try:
        await named(ctx, "work")
    except asyncio.CancelledError:
        return await named(ctx, "instead")
    return ""


def test_a_cancelled_workflow_that_returns_has_a_partial_result() -> None:
    run = Driver(_instead)
    run.cancel()
    run.complete("instead", "saved")
    assert run.settled().partial == "saved"


def test_a_recorded_cancellation_of_an_earlier_version_leaves_the_outcome_to_the_code() -> None:
    run = Driver(_instead)
    run.cancel()
    older = [replace(record, digest="") for record in run.history]
    other = run.again(older)
    other.complete("instead", "saved")
    assert other.result == "saved"
    other = run.again(older)
    other.fail("instead", ValueError("cannot"))
    assert other.ended.status is Status.FAILED


def test_a_workflow_may_decide_to_go_on_after_a_cancellation() -> None:
    async def flow(ctx: Context) -> Any:
        try:
            await named(ctx, "work")
        except asyncio.CancelledError:
            ctx.uncancel()
        try:
            return await named(ctx, "instead")
        except asyncio.CancelledError:
            ctx.uncancel()
        return await named(ctx, "at last")

    run = Driver(flow)
    run.cancel("once")
    run.cancel("twice")
    run.complete("at last", "saved")
    assert run.settled().result == "saved"


def test_an_error_in_the_cleanup_is_the_cause_of_the_outcome() -> None:
    async def flow(ctx: Context) -> None:
        try:
            await named(ctx, "work")
        finally:
            await named(ctx, "undo")

    run = Driver(flow)
    run.cancel()
    run.fail("undo", ValueError("cannot"))
    assert run.ended.status is Status.CANCELLED
    assert str(run.settled().error.__cause__) == "cannot"


def test_a_cancellation_goes_down_into_groups_and_gathers() -> None:
    async def branch(ctx: Context, key: str, trace: list[str]) -> None:
        try:
            await named(ctx, key)
        finally:
            trace.append(key)

    async def flow(ctx: Context) -> Any:
        trace: list[str] = []
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(branch(ctx, "a", trace))
                await asyncio.gather(branch(ctx, "b", trace), branch(ctx, "c", trace))
        except asyncio.CancelledError:
            return trace
        return []

    run = Driver(flow)
    run.cancel()
    assert sorted(run.settled().partial) == ["a", "b", "c"]


def test_a_workflow_that_cancels_itself_has_failed() -> None:
    async def flow(ctx: Context) -> None:
        raise asyncio.CancelledError("not requested")

    assert Driver(flow).ended.status is Status.FAILED


def test_what_is_still_open_when_the_workflow_returns_is_given_up() -> None:
    async def flow(ctx: Context) -> Any:
        task = asyncio.create_task(_await(named(ctx, "background")))
        task.add_done_callback(lambda _: None)
        return await named(ctx, "main")

    run = Driver(flow)
    run.complete("main", "done")
    assert run.open == []
    assert run.settled().result == "done"


def test_failed_attempts_leave_their_count_and_the_time_of_the_next() -> None:
    async def flow(ctx: Context) -> Any:
        return await named(ctx, "flaky")

    run = Driver(flow)
    run.stumble("flaky", ValueError("once"), attempts=1, retry_at=42)
    run.stumble("flaky", ValueError("twice"), attempts=2, retry_at=43)
    operation = run.operation("flaky")
    assert isinstance(operation, StepOperation)
    assert (operation.attempts, operation.retry_at) == (2, 43)
    assert [record.kind for record in run.history] == [RecordKind.ATTEMPT, RecordKind.ATTEMPT]
    run.complete("flaky", "at last")
    assert run.settled().result == "at last"


async def _await(operation: Any) -> Any:
    return await operation
