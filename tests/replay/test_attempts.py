"""Another attempt at a whole run starts anew, but does not do again what succeeded."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from perdure import Context, workflow
from perdure.core.model.record import Record, RecordKind
from perdure.core.model.run import kept_seed
from perdure.replay.operations import ChildOperation
from tests.replay.driver import START, Driver, Function, named


@workflow("test.child.v1")
async def child(ctx: Context, number: int) -> int:
    return number


def second_attempt(flow: Function, history: Sequence[Record]) -> Driver:
    """Make the next attempt as a worker does: recall results until nothing is left to recall."""
    run = Driver(flow, history=history, attempt=2)
    recall(run)
    return run


def recall(run: Driver) -> None:
    """Complete operations with the results of earlier attempts."""
    execution = run.execution
    while execution.fresh:
        fresh, execution.fresh = execution.fresh, []
        for operation in fresh:
            if operation.open:
                execution.recall(operation, execution.time)
    run._save()


def test_results_of_an_earlier_attempt_are_used_and_failures_are_tried_again() -> None:
    async def flow(ctx: Context) -> Any:
        return [await named(ctx, "charge"), await named(ctx, "ship")]

    first = Driver(flow)
    first.complete("charge", "receipt")
    first.fail("ship", ValueError("no van"))
    second = second_attempt(flow, first.history)
    assert second.open == ["ship"]
    second.complete("ship", "sent")
    assert second.result == ["receipt", "sent"]
    assert [(each.seq, each.location, each.run_attempt) for each in second.history] == [
        (0, "charge", 1),
        (1, "ship", 1),
        (2, "charge", 2),
        (3, "ship", 2),
    ]


def test_a_later_attempt_replays_by_its_own_records_alone() -> None:
    async def flow(ctx: Context) -> Any:
        return [await named(ctx, "charge"), await named(ctx, "ship")]

    first = Driver(flow)
    first.complete("charge", "receipt")
    first.fail("ship", ValueError("no van"))
    second = second_attempt(flow, first.history)
    again = Driver(flow, history=second.history, attempt=2)
    assert again.open == ["ship"]
    assert again.execution.replayed == 1
    again.complete("ship", "sent")
    assert again.result == ["receipt", "sent"]
    assert second.execution.evict()


def test_a_step_with_other_arguments_is_done_again() -> None:
    def flow(amount: int) -> Function:
        async def body(ctx: Context) -> Any:
            return await named(ctx, "charge", amount)

        return body

    first = Driver(flow(1))
    first.complete("charge", "receipt")
    second = second_attempt(flow(2), first.history)
    assert second.open == ["charge"]
    assert second.execution.evict()


def test_what_was_slept_is_not_slept_again_but_a_timeout_has_its_full_time() -> None:
    async def flow(ctx: Context) -> Any:
        await asyncio.sleep(3600)
        async with asyncio.timeout(60):
            await named(ctx, "slow")

    first = Driver(flow)
    assert first.fire() == "sleep"
    assert first.fire() == "timer"
    assert isinstance(first.error, TimeoutError)
    second = second_attempt(flow, first.history)
    assert second.open == ["timer", "slow"]
    assert second.execution.evict()
    again = Driver(flow, history=second.history, attempt=2)
    assert again.open == ["timer", "slow"]
    assert again.execution.warnings == []
    assert again.execution.evict()


def test_messages_of_an_earlier_attempt_are_in_the_mailbox_again() -> None:
    async def flow(ctx: Context) -> Any:
        first = await ctx.receive("item")
        await named(ctx, "use", first)
        return [first, await ctx.receive("item")]

    first = Driver(flow)
    first.message("item", 1)
    first.message("item", 2)
    first.fail("use", ValueError("no"))
    second = second_attempt(flow, first.history)
    assert second.open == ["use"]
    second.complete("use")
    assert second.result == [1, 2]
    again = Driver(flow, history=second.history, attempt=2)
    assert again.result == [1, 2]


def test_an_attempt_that_needs_no_message_to_end_takes_none_in_and_replays() -> None:
    async def waiting(ctx: Context) -> Any:
        await ctx.receive("item")
        await named(ctx, "use")

    async def at_once(ctx: Context) -> Any:
        return "done"

    async def by_one(ctx: Context) -> Any:
        return await ctx.receive("item")

    first = Driver(waiting)
    first.message("item", 1)
    first.message("item", 2)
    first.fail("use", ValueError("no"))
    for flow, result in ((at_once, "done"), (by_one, 1)):
        second = second_attempt(flow, first.history)
        assert second.result == result
        assert Driver(flow, history=second.history, attempt=2).result == result


def test_a_child_that_succeeded_is_kept_and_one_that_failed_is_another_run() -> None:
    async def flow(ctx: Context) -> Any:
        return await asyncio.gather(ctx.call(child(1)), ctx.call(child(2)))

    first = Driver(flow)
    first.complete("test.child.v1", 10)
    first.fail("test.child.v1#2", ValueError("no"))
    second = second_attempt(flow, first.history)
    assert second.open == ["test.child.v1#2"]
    operation = second.operation("test.child.v1#2")
    assert isinstance(operation, ChildOperation)
    assert operation.child_id == "run-1/test.child.v1#2@2"
    second.complete("test.child.v1#2", 20)
    assert second.result == [10, 20]


@pytest.mark.parametrize("wait", ["result", "state"])
def test_a_wait_for_another_run_than_before_is_made_anew(wait: str) -> None:
    async def flow(ctx: Context) -> Any:
        target = "run-A"
        with contextlib.suppress(ValueError):
            target = await named(ctx, "which")
        other = ctx.run(target)
        found = await (other.result() if wait == "result" else other.state("phase"))
        return [target, found, await named(ctx, "end")]

    outcome = "of A" if wait == "result" else {"outputs": [['"of A"', 0]]}
    first = Driver(flow)
    first.fail("which", ValueError("down"))
    first.complete(f"run.{wait}", outcome)
    first.fail("end", ValueError("no"))
    for target, left_open in [("run-A", "end"), ("run-B", f"run.{wait}")]:
        second = second_attempt(flow, first.history)
        second.complete("which", target)
        recall(second)
        assert second.open == [left_open]


def test_the_end_of_another_run_that_nothing_waited_for_is_no_answer_for_a_later_attempt() -> None:
    async def flow(ctx: Context) -> Any:
        return [await named(ctx, "a"), await ctx.run("run-B").result()]

    first = Driver(flow)
    first.fail("a", ValueError("no"))
    # As an entry of the inbox is that came when the attempt had failed: it does not tell which run has ended.
    unread = Record(seq=1, kind=RecordKind.CHILD, location="run.result", payload='"of A"', at=START, inbox_seq=1)
    second = second_attempt(flow, [*first.history, unread])
    second.complete("a", 1)
    recall(second)
    assert second.open == ["run.result"]


def test_random_numbers_are_those_of_the_first_attempt_so_that_idempotency_keys_stay() -> None:
    async def flow(ctx: Context) -> Any:
        return [str(ctx.uuid()), ctx.random()]

    assert Driver(flow).result == Driver(flow, attempt=2).result


def test_records_go_on_counting() -> None:
    async def flow(ctx: Context) -> Any:
        return await named(ctx, "a")

    first = Driver(flow)
    first.fail("a", ValueError("no"))
    second = second_attempt(flow, first.history)
    second.complete("a", "end")
    assert [(each.seq, each.kind) for each in second.history] == [(0, RecordKind.STEP), (1, RecordKind.STEP)]
    assert second.history[1].at >= START


def test_a_third_attempt_gets_each_message_once() -> None:
    async def flow(ctx: Context) -> Any:
        got = [await ctx.receive("item"), await ctx.receive("item")]
        await named(ctx, "use", got)
        return got

    first = Driver(flow)
    first.message("item", 1)
    first.message("item", 2)
    first.fail("use", ValueError("no"))
    second = second_attempt(flow, first.history)
    second.fail("use", ValueError("no"))
    third = Driver(flow, history=second.history, attempt=3)
    third.message("item", 3)
    third.complete("use")
    assert third.result == [1, 2]


def test_a_generation_that_was_opened_again_has_the_random_numbers_of_the_one_before() -> None:
    async def flow(ctx: Context) -> Any:
        return [str(ctx.uuid()), ctx.random()]

    first = Driver(flow, seed="seed").result
    assert Driver(flow, seed=kept_seed("seed", 1, 2), generation=2, attempt=2).result == first
    assert Driver(flow, seed=kept_seed(kept_seed("seed", 1, 2), 2, 3), generation=3, attempt=3).result == first
    assert Driver(flow, seed="seed", generation=2).result != first
    assert Driver(flow, seed=kept_seed("seed", 1, 2), generation=3).result != first


def test_a_child_that_ends_again_changes_nothing_for_a_parent_that_was_told() -> None:
    async def flow(ctx: Context) -> Any:
        try:
            await ctx.call(child(1))
        except ValueError:
            await named(ctx, "without")
        return "end"

    run = Driver(flow)
    run.fail("test.child.v1", ValueError("no"))
    run.late("test.child.v1")
    run.complete("without")
    assert run.settled().result == "end"


def test_after_a_fork_random_numbers_are_drawn_anew_and_before_it_they_are_what_they_were() -> None:
    async def flow(ctx: Context) -> Any:
        early = ctx.random()
        await named(ctx, "a", early)
        late = ctx.random()
        await named(ctx, "b", late)
        return [early, late]

    source = Driver(flow)
    source.complete("a")
    [record] = source.history
    mark = replace(record, seq=0, kind=RecordKind.FORK, location="", payload="{}")
    copy = Driver(flow, history=[mark, replace(record, seq=1)])
    assert copy.execution.warnings == []
    source.complete("b")
    copy.complete("b")
    assert copy.result[0] == source.result[0]
    assert copy.result[1] != source.result[1]
    assert copy.again().result == copy.result
