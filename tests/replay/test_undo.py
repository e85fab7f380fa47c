"""Undo in reverse order of completion, the same on replay."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from perdure import Break, Context, Continue, Rollback, workflow
from perdure.core.codec.failure import Failure
from perdure.core.model.run import Status
from perdure.errors import RunTerminated, WorkflowError
from tests.replay.driver import Driver, named, work


@workflow("test.anew.v1")
async def anew(ctx: Context) -> None:
    pass


def undone(ctx: Context, name: str) -> asyncio.Future[object]:
    return ctx.options(name=name, undo=work).step(work, name)


async def test_a_failed_run_is_undone_in_reverse_order_of_completion() -> None:
    async def flow(ctx: Context) -> None:
        await asyncio.gather(undone(ctx, "a"), undone(ctx, "b"), undone(ctx, "c"))
        raise ValueError("no")

    run = Driver(flow)
    for each in "bca":
        run.complete(each, each.upper())
    for each in "acb":
        assert run.open == [f"{each}/~undo"]
        run.complete(f"{each}/~undo")
    assert run.ended.status is Status.FAILED
    assert str(run.error) == "no"
    run.settled()


async def test_a_run_that_completes_undoes_nothing() -> None:
    async def flow(ctx: Context) -> str:
        await undone(ctx, "a")
        return "done"

    run = Driver(flow)
    run.complete("a")
    assert run.settled().result == "done"


async def test_a_step_that_failed_is_not_undone() -> None:
    async def flow(ctx: Context) -> None:
        await undone(ctx, "a")
        await undone(ctx, "b")

    run = Driver(flow)
    run.complete("a")
    run.fail("b", ValueError("no"))
    assert run.open == ["a/~undo"]
    run.complete("a/~undo")
    assert isinstance(run.settled().error, ValueError)


async def test_a_cancelled_run_is_undone_and_a_second_cancellation_does_not_stop_that() -> None:
    async def flow(ctx: Context) -> None:
        await undone(ctx, "a")
        await undone(ctx, "b")
        await ctx.receive("never")

    run = Driver(flow)
    run.complete("a")
    run.complete("b")
    run.cancel("first")
    assert run.open == ["b/~undo"]
    run.cancel("second")
    assert run.open == ["b/~undo"]
    run.complete("b/~undo")
    run.complete("a/~undo")
    assert run.ended.status is Status.CANCELLED
    assert "first" in str(run.error)
    run.settled()


async def test_a_block_that_fails_is_undone_before_its_error_goes_on() -> None:
    async def flow(ctx: Context) -> str:
        await undone(ctx, "outer")
        try:
            async with ctx.saga():
                await undone(ctx, "a")
                await undone(ctx, "b")
                raise ValueError("no")
        except ValueError as error:
            await named(ctx, "after")
            return str(error)

    run = Driver(flow)
    for location in ("outer", "a", "b", "b/~undo", "a/~undo", "after"):
        assert run.open == [location]
        run.complete(location)
    assert run.settled().result == "no"


async def test_a_block_that_was_left_without_an_error_is_undone_with_the_one_around_it() -> None:
    async def flow(ctx: Context) -> None:
        await undone(ctx, "a")
        async with ctx.saga():
            await undone(ctx, "b")
            async with ctx.saga():
                await undone(ctx, "c")
        await undone(ctx, "d")
        raise Rollback("all of it")

    run = Driver(flow)
    for each in "abcd":
        run.complete(each)
    for each in "dcba":
        assert run.open == [f"{each}/~undo"]
        run.complete(f"{each}/~undo")
    assert isinstance(run.settled().error, Rollback)


async def test_what_is_kept_is_not_undone() -> None:
    async def flow(ctx: Context) -> None:
        await undone(ctx, "a")
        ctx.keep()
        await undone(ctx, "b")
        raise ValueError("no")

    run = Driver(flow)
    run.complete("a")
    run.complete("b")
    assert run.open == ["b/~undo"]
    run.complete("b/~undo")
    assert isinstance(run.settled().error, ValueError)
    assert [record.location for record in run.history] == ["a", "b", "b/~undo"]


async def test_keeping_in_a_block_leaves_what_was_done_around_it() -> None:
    async def flow(ctx: Context) -> None:
        await undone(ctx, "a")
        async with ctx.saga() as saga:
            await undone(ctx, "b")
            saga.keep()
            raise ValueError("no")

    run = Driver(flow)
    run.complete("a")
    run.complete("b")
    assert run.open == ["a/~undo"]
    run.complete("a/~undo")
    run.settled()


async def test_a_failing_undo_stops_neither_the_others_nor_the_first_error() -> None:
    async def flow(ctx: Context) -> None:
        await undone(ctx, "a")
        await undone(ctx, "b")
        raise ValueError("first")

    run = Driver(flow)
    run.complete("a")
    run.complete("b")
    run.fail("b/~undo", OSError("no way back"))
    run.complete("a/~undo")
    assert str(run.error) == "first"
    failure = Failure.from_json(run.ended.payload or "")
    assert failure.message == "first"
    assert {place: error.message for place, error in failure.not_undone.items()} == {"b": "no way back"}
    run.settled()


async def test_a_failing_undo_of_a_block_is_a_note_on_its_error_and_known_to_the_block() -> None:
    async def flow(ctx: Context) -> list[str]:
        saga = ctx.saga()
        try:
            async with saga:
                await undone(ctx, "a")
                raise ValueError("first")
        except ValueError as error:
            return [*error.__notes__, *saga.errors]

    run = Driver(flow)
    run.complete("a")
    run.fail("a/~undo", OSError("no way back"))
    assert run.settled().result == ["What 'a' did was not undone: OSError: no way back", "a"]


async def test_anything_can_be_said_to_undo_what_was_done() -> None:
    async def flow(ctx: Context) -> None:
        await named(ctx, "charge")
        ctx.undo(work, "o-1")
        await named(ctx, "work")
        ctx.options(name="call off").undo(work, "o-2")
        raise ValueError("no")

    run = Driver(flow)
    run.complete("charge")
    assert run.open == ["work#2"]
    run.complete("work#2")
    run.complete("call off/~undo")
    run.complete("work/~undo")
    run.settled()


async def test_a_step_under_way_when_the_run_fails_is_waited_for_and_undone() -> None:
    async def flow(ctx: Context) -> None:
        await undone(ctx, "a")
        await asyncio.gather(undone(ctx, "slow"), named(ctx, "bad"))

    run = Driver(flow)
    run.complete("a")
    run.fail("bad", ValueError("no"))
    assert run.open == ["slow"]
    run.complete("slow")
    run.complete("slow/~undo")
    run.complete("a/~undo")
    assert isinstance(run.settled().error, ValueError)


async def test_a_step_that_was_given_up_is_not_undone() -> None:
    async def flow(ctx: Context) -> None:
        await undone(ctx, "a")
        async with asyncio.timeout(1):
            await undone(ctx, "slow")

    run = Driver(flow)
    run.complete("a")
    run.fire()
    assert run.open == ["a/~undo"]
    run.complete("a/~undo")
    assert isinstance(run.settled().error, TimeoutError)


async def test_tasks_beside_a_failed_run_are_cancelled_and_their_blocks_undone_first() -> None:
    async def beside(ctx: Context) -> None:
        async with ctx.saga():
            await undone(ctx, "b")
            await ctx.receive("never")

    async def flow(ctx: Context) -> None:
        await undone(ctx, "a")
        task = asyncio.get_running_loop().create_task(beside(ctx))
        await named(ctx, "bad")
        await task

    run = Driver(flow)
    run.complete("a")
    run.complete("b")
    run.fail("bad", ValueError("no"))
    assert run.open == ["b/~undo"]
    run.complete("b/~undo")
    run.complete("a/~undo")
    assert isinstance(run.settled().error, ValueError)


async def test_a_timeout_around_a_block_waits_for_its_undos_and_then_counts() -> None:
    async def flow(ctx: Context) -> str:
        try:
            async with asyncio.timeout(5):
                async with ctx.saga():
                    await undone(ctx, "a")
                    raise ValueError("no")
        except TimeoutError:
            return "too late"

    run = Driver(flow)
    run.complete("a")
    assert run.fire() == "timer"
    assert run.open == ["a/~undo"]
    run.complete("a/~undo")
    assert run.settled().result == "too late"


async def test_a_result_that_cannot_be_stored_fails_the_run_and_it_is_undone() -> None:
    async def flow(ctx: Context) -> object:
        await undone(ctx, "a")
        return object()

    run = Driver(flow)
    run.complete("a")
    run.complete("a/~undo")
    assert run.settled().ended.status is Status.FAILED


async def test_the_undos_of_branches_belong_to_the_block_that_started_them() -> None:
    async def branch(ctx: Context, name: str) -> None:
        await undone(ctx, name)

    async def flow(ctx: Context) -> str:
        try:
            async with ctx.saga():
                async with asyncio.TaskGroup() as group:
                    group.create_task(branch(ctx, "a"))
                    group.create_task(branch(ctx, "b"))
                raise ValueError("no")
        except ValueError:
            return "undone"

    run = Driver(flow)
    run.complete("b")
    run.complete("a")
    run.complete("a/~undo")
    run.complete("b/~undo")
    assert run.settled().result == "undone"


async def test_the_next_attempt_at_a_run_does_again_what_was_undone_and_keeps_the_rest() -> None:
    async def flow(ctx: Context) -> str:
        await undone(ctx, "kept")
        async with ctx.saga():
            await undone(ctx, "a")
            await named(ctx, "b")
        return "done"

    first = Driver(flow)
    first.complete("kept")
    first.complete("a")
    first.fail("b", ValueError("no"))
    first.complete("a/~undo")
    assert first.open == ["kept/~undo"]
    history = first.history
    second = Driver(flow, history=history, attempt=2)
    operation = second.operation("kept")
    assert second.execution.recall(operation, 0)
    assert second.open == ["a"]
    assert not second.execution.recall(second.operation("a"), 0)


async def test_the_next_attempt_at_a_run_keeps_what_could_not_be_undone() -> None:
    async def flow(ctx: Context) -> str:
        await undone(ctx, "a")
        await undone(ctx, "b")
        await named(ctx, "c")
        return "done"

    first = Driver(flow)
    first.complete("a")
    first.complete("b")
    first.fail("c", ValueError("no"))
    first.fail("b/~undo", OSError("no way back"))
    first.complete("a/~undo")
    second = Driver(flow, history=first.history, attempt=2)
    assert not second.execution.recall(second.operation("a"), 0)
    second.complete("a")
    assert second.open == ["b"]
    assert second.execution.recall(second.operation("b"), 0)
    assert second.open == ["c"]


@pytest.mark.parametrize("stop", [Driver.cancel, Driver.terminate])
async def test_an_attempt_that_fails_before_a_stop_that_waits_for_it_is_undone_also_on_replay(
    stop: Callable[[Driver], None],
) -> None:
    async def flow(ctx: Context) -> None:
        await undone(ctx, "a")
        raise ValueError("no")

    first = Driver(flow, gives_up=False)
    first.complete("a")
    assert first.ended.final is False
    second = Driver(flow, history=first.history, attempt=2, gives_up=False)
    second.execution.cancel_waits = True
    assert second.execution.recall(second.operation("a"), 0)
    second.execution.cancel_waits = False
    second._save()
    stop(second)
    for run in (second.again(), second):
        assert run.open == ["a/~undo"]
        run.complete("a/~undo")
        assert (run.ended.status, run.ended.final, str(run.error)) == (Status.FAILED, True, "no")


async def test_a_block_can_be_entered_once() -> None:
    async def flow(ctx: Context) -> None:
        saga = ctx.saga()
        async with saga:
            pass
        async with saga:
            pass

    with pytest.raises(WorkflowError, match="once"):
        raise Driver(flow).error


async def test_undoing_needs_arguments_that_can_be_stored() -> None:
    async def flow(ctx: Context) -> None:
        ctx.undo(work, object())

    assert "cannot store" in str(Driver(flow).error)


async def test_losers_of_a_race_are_undone_before_the_winner_is_recorded() -> None:
    async def loser(ctx: Context) -> None:
        await undone(ctx, "b")
        await ctx.receive("never")

    async def flow(ctx: Context) -> None:
        await ctx.race({"first": lambda ctx: undone(ctx, "a"), "second": loser})
        raise ValueError("no")

    run = Driver(flow)
    run.complete("race/second/b")
    run.complete("race/first/a")
    assert run.open == ["race/second/b/~undo"]
    run.complete("race/second/b/~undo")
    assert run.open == ["race/first/a/~undo"]
    run.complete("race/first/a/~undo")
    assert [record.location for record in run.history] == ["race/first/a", "race", "race/first/a/~undo"]
    run.settled()


async def test_what_could_not_be_undone_of_the_losers_of_a_race_is_known_on_replay_too() -> None:
    class Odd(Exception):
        """An error of a class that is not registered."""

    async def loser(ctx: Context) -> None:
        await undone(ctx, "b")
        await undone(ctx, "c")
        await ctx.receive("never")

    async def flow(ctx: Context) -> list[str]:
        async with ctx.saga() as saga:
            await ctx.race({"first": lambda ctx: undone(ctx, "a"), "second": loser})
            await named(
                ctx, "after", [f"{where} {type(error).__name__} {error}" for where, error in saga.errors.items()]
            )
            raise Rollback("no")

    run = Driver(flow)
    run.complete("race/second/b")
    run.complete("race/second/c")
    run.complete("race/first/a")
    run.fail("race/second/c/~undo", OSError("no way back"))
    run.fail("race/second/b/~undo", Odd("nor here"))
    assert [record.location for record in run.history] == ["race/first/a", "race"]
    run.complete("after")
    run.complete("race/first/a/~undo")
    notes = run.settled().error.__notes__
    assert [note for note in notes if "not undone" in note] == [
        "What 'race/second/c' did was not undone: OSError: no way back",
        f"What 'race/second/b' did was not undone: StepFailed: {Odd.__module__}.{Odd.__qualname__}: nor here",
    ]
    assert run.execution.warnings == run.again().execution.warnings == []


async def test_what_a_finished_iteration_did_is_final() -> None:
    async def body(ctx: Context, state: int) -> Continue[int] | Break[int]:
        await undone(ctx, "a")
        if state == 2:
            raise ValueError("no")
        return Continue(state + 1)

    async def flow(ctx: Context) -> None:
        await ctx.loop(0, body, commit_every=100)

    run = Driver(flow)
    for number in range(3):
        run.complete(f"loop/~{number}/a")
    assert run.open == ["loop/~2/a/~undo"]
    run.complete("loop/~2/a/~undo")
    assert isinstance(run.settled().error, ValueError)


async def test_beginning_anew_undoes_nothing() -> None:
    async def flow(ctx: Context) -> None:
        async with ctx.saga():
            await undone(ctx, "a")
            ctx.continue_as_new(anew())

    run = Driver(flow)
    run.complete("a")
    renewed = run.ended.renewed
    assert renewed is not None
    assert renewed.definition is anew
    assert [record.location for record in run.history] == ["a"]


async def test_a_terminated_run_undoes_its_steps_without_its_code() -> None:
    seen: list[str] = []

    async def flow(ctx: Context) -> None:
        await undone(ctx, "a")
        async with ctx.saga():
            await undone(ctx, "b")
            while True:
                try:
                    await ctx.receive("never")
                except BaseException:
                    seen.append("caught")
                    raise

    run = Driver(flow)
    run.complete("a", "A")
    run.complete("b", "B")
    run.terminate("enough")
    # Handlers run in memory while the code ends; nothing that they ask for takes effect.
    assert seen == ["caught"]
    assert run.open == ["b/~undo"]
    run.cancel("too late")
    run.complete("b/~undo")
    run.complete("a/~undo")
    assert run.ended.status is Status.FAILED
    assert isinstance(run.error, RunTerminated)
    assert str(run.error) == "run 'run-1' was terminated: enough"
    run.settled()


async def test_a_terminated_run_that_refuses_to_end_undoes_its_steps() -> None:
    async def flow(ctx: Context) -> None:
        await undone(ctx, "a")
        while True:
            try:
                await ctx.sleep(60)
            except BaseException:
                continue

    run = Driver(flow)
    run.complete("a", "A")
    run.terminate()
    run.complete("a/~undo")
    assert isinstance(run.error, RunTerminated)


async def test_a_terminated_run_waits_for_steps_under_way_that_have_an_undo() -> None:
    async def flow(ctx: Context) -> None:
        await asyncio.gather(undone(ctx, "a"), asyncio.shield(undone(ctx, "b")), named(ctx, "plain"), ctx.sleep(60))

    run = Driver(flow)
    run.complete("a", "A")
    run.terminate()
    assert run.open == ["b"]
    run.complete("b", "B")
    assert run.open == ["b/~undo"]
    run.complete("b/~undo")
    run.complete("a/~undo")
    assert isinstance(run.error, RunTerminated)
    run.settled()


async def test_a_terminated_run_begins_the_undo_of_a_block_anew() -> None:
    async def flow(ctx: Context) -> None:
        await undone(ctx, "a")
        async with ctx.saga():
            await undone(ctx, "b")
            raise ValueError("no")

    run = Driver(flow)
    run.complete("a", "A")
    run.complete("b", "B")
    assert run.open == ["b/~undo"]
    run.terminate()
    assert run.open == ["b/~undo"]
    run.complete("b/~undo")
    run.complete("a/~undo")
    assert isinstance(run.error, RunTerminated)
    run.settled()


async def test_a_terminated_run_with_nothing_to_undo_ends_at_once_and_lets_its_children_go() -> None:
    async def flow(ctx: Context) -> None:
        await ctx.spawn(anew(), on_close="wait")

    run = Driver(flow)
    run.terminate()
    assert isinstance(run.error, RunTerminated)
    run.settled()


async def test_a_run_that_is_being_undone_is_not_terminated_again() -> None:
    async def flow(ctx: Context) -> None:
        await undone(ctx, "a")
        raise ValueError("no")

    run = Driver(flow)
    run.complete("a", "A")
    run.terminate()
    run.complete("a/~undo")
    assert isinstance(run.error, ValueError)
    run.settled()
