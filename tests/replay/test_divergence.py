"""Code that no longer fits its history is stopped before anything leaves the run, and told how they differ."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from perdure import Call, Context, workflow
from perdure.core.model.record import Record, RecordKind
from perdure.errors import Diverged
from tests.replay.driver import START, Driver, named

Flow = Callable[[Context], Any]


@workflow("test.child.v1")
async def child(ctx: Context, number: int) -> int:
    return number


async def one_by_one(ctx: Context, *calls: tuple[str, Any]) -> list[Any]:
    return [await named(ctx, name, argument) for name, argument in calls]


def sequence(*calls: tuple[str, Any]) -> Flow:
    return lambda ctx: one_by_one(ctx, *calls)


def history_of(flow: Flow, *locations: str) -> list[Record]:
    run = Driver(flow)
    for location in locations:
        run.complete(location, 1 if location.startswith("test.child") else location)
    if run.outcome is None:
        assert run.execution.evict()
    return run.history


def difference(flow: Flow, history: list[Record]) -> str:
    with pytest.raises(Diverged) as caught:
        Driver(flow, history=history)
    return str(caught.value)


def test_a_removed_step_is_shown_with_what_the_code_asks_for_instead() -> None:
    history = history_of(sequence(("reserve", 1), ("charge", 2), ("ship", 3)), "reserve", "charge")
    text = difference(sequence(("reserve", 1), ("ship", 3)), history)
    assert text.splitlines() == [
        "run 'run-1' does not follow its history any more:",
        "  - record 1: step 'charge'",
        "  + the code waits for step 'ship'",
        "nothing was written; deploy code that makes the recorded calls in the recorded order, and the run goes on",
    ]


def test_a_renamed_step_diverges() -> None:
    history = history_of(sequence(("charge", 1), ("ship", 2)), "charge")
    assert "+ the code waits for step 'bill'" in difference(sequence(("bill", 1), ("ship", 2)), history)


def test_two_steps_that_changed_places_diverge() -> None:
    history = history_of(sequence(("charge", 1), ("ship", 2)), "charge")
    assert "+ the code waits for step 'ship'" in difference(sequence(("ship", 2), ("charge", 1)), history)


def test_arguments_that_another_step_was_recorded_with_are_changed_arguments() -> None:
    history = history_of(sequence(("charge", 1), ("ship", 2)), "charge", "ship")
    run = Driver(sequence(("charge", 2), ("ship", 2)), history=history)
    assert run.execution.warnings == ["step 'charge' was recorded with other arguments than the code gives it now"]
    assert run.result == ["charge", "ship"]


def test_another_kind_of_operation_at_the_same_place_diverges() -> None:
    async def sleeps(ctx: Context) -> None:
        await ctx.sleep(1)

    history = history_of(sequence(("sleep", 1)), "sleep")
    assert "+ the code asks for a timer there" in difference(sleeps, history)


def test_a_workflow_that_returns_too_early_diverges() -> None:
    history = history_of(sequence(("charge", 1), ("ship", 2)), "charge", "ship")
    assert "+ the workflow returned" in difference(sequence(("charge", 1)), history)


def test_a_workflow_that_raises_too_early_diverges_and_the_error_is_shown() -> None:
    async def raises(ctx: Context) -> None:
        raise ValueError("a bug in the new code")

    history = history_of(sequence(("charge", 1)), "charge")
    text = difference(raises, history)
    assert "ValueError: a bug in the new code" in text


def test_a_workflow_that_waits_for_messages_only_says_so() -> None:
    async def receives(ctx: Context) -> None:
        await ctx.receive("approval")

    history = history_of(sequence(("charge", 1)), "charge")
    assert "+ the code waits for message 'approval'" in difference(receives, history)


def test_many_open_operations_are_not_all_listed() -> None:
    async def many(ctx: Context) -> None:
        await asyncio.gather(*(named(ctx, f"step-{number}") for number in range(500)))

    history = history_of(sequence(("charge", 1)), "charge")
    text = difference(many, history)
    assert "step 'step-0'" in text
    assert len(text) < 1000


def test_a_removed_sleep_diverges() -> None:
    async def before(ctx: Context) -> None:
        await asyncio.sleep(5)
        await named(ctx, "a")

    run = Driver(before)
    run.fire()
    assert "record 0: timer 'sleep'" in difference(sequence(("a", "a")), run.history)
    assert run.execution.evict()


def test_a_removed_child_diverges() -> None:
    async def before(ctx: Context) -> None:
        await ctx.call(child(1))
        await named(ctx, "a")

    run = Driver(before)
    run.complete("test.child.v1", 1)
    assert "record 0: child 'test.child.v1'" in difference(sequence(("a", "a")), run.history)
    assert run.execution.evict()


def test_an_attempt_at_a_step_that_is_gone_diverges() -> None:
    run = Driver(sequence(("charge", 1), ("ship", 2)))
    run.stumble("charge", ValueError("no"))
    assert "record 0: attempt 'charge'" in difference(sequence(("ship", 2)), run.history)
    assert run.execution.evict()


def test_calls_of_one_name_that_changed_places_diverge() -> None:
    history = history_of(sequence(("charge", "ada"), ("charge", "bob")), "charge", "charge#2")
    text = difference(sequence(("charge", "bob"), ("charge", "ada")), history)
    assert "record 0: step 'charge'" in text
    assert "the arguments of another recorded call, 'charge#2'" in text


def test_calls_that_changed_places_diverge_though_only_the_first_was_recorded() -> None:
    history = history_of(sequence(("charge", "ada"), ("charge", "bob")), "charge")
    text = difference(sequence(("charge", "bob"), ("charge", "ada")), history)
    assert "record 0: step 'charge'" in text
    assert "'charge#2'" in text


def test_parallel_calls_that_changed_places_diverge_though_only_one_was_recorded() -> None:
    def parallel(*names: str) -> Flow:
        async def flow(ctx: Context) -> Any:
            return await asyncio.gather(*(named(ctx, "charge", name) for name in names))

        return flow

    history = history_of(parallel("ada", "bob", "cid"), "charge#2")
    text = difference(parallel("bob", "ada", "cid"), history)
    assert "record 0: step 'charge#2'" in text
    assert "'charge'" in text


def test_a_call_put_before_a_recorded_one_of_its_name_diverges() -> None:
    history = history_of(sequence(("charge", "ada"), ("ship", 1)), "charge")
    difference(sequence(("charge", "new"), ("charge", "ada"), ("ship", 1)), history)


def test_other_arguments_are_a_warning_and_no_more() -> None:
    history = history_of(sequence(("charge", 100), ("ship", 1)), "charge")
    run = Driver(sequence(("charge", 120), ("ship", 1)), history=history)
    [warning] = run.execution.warnings
    assert "'charge'" in warning
    assert run.open == ["ship"]
    assert run.execution.evict()


def test_a_timer_that_went_off_before_the_code_would_have_it_is_a_warning() -> None:
    def sleeping(*seconds: int) -> Flow:
        async def flow(ctx: Context) -> None:
            for each in seconds:
                await ctx.sleep(each)
            await ctx.receive("end")

        return flow

    run = Driver(sleeping(1, 86_400))
    run.fire()
    for seconds, warned in (((1, 86_400), False), ((86_400,), True), ((2, 86_400), True), ((0, 5), False)):
        again = Driver(sleeping(*seconds), history=run.history)
        assert bool(again.execution.warnings) is warned, seconds
        assert again.execution.evict()
    assert run.execution.evict()


def test_children_of_one_type_that_changed_places_diverge() -> None:
    def calls(*numbers: int) -> Flow:
        async def flow(ctx: Context) -> Any:
            return [await ctx.call(child(number)) for number in numbers]

        return flow

    history = history_of(calls(1, 2), "test.child.v1", "test.child.v1#2")
    assert "record 0: child 'test.child.v1'" in difference(calls(2, 1), history)


def test_the_late_outcome_of_a_child_that_was_given_up_shows_of_which_call_it_is() -> None:
    def calls(given_up: str) -> Flow:
        async def flow(ctx: Context) -> Any:
            try:
                await ctx.call(Call.named(given_up, 10))
            except asyncio.CancelledError:
                ctx.uncancel()
            second = ctx.spawn(Call.named("a.v1", 14))
            await ctx.receive("go")
            return await second

        return flow

    run = Driver(calls("a.v1"))
    run.cancel()
    run.late("a.v1")
    run.message("go")
    again = Driver(calls("a.v1"), history=run.history)
    assert again.execution.warnings == []
    assert again.open == ["a.v1#2"]
    changed = Driver(calls("b.v1"), history=run.history)
    assert changed.execution.warnings == ["child 'a.v1' was recorded with other arguments than the code gives it now"]
    assert changed.result == 1
    for one in (run, again):
        assert one.execution.evict()


def test_the_outcome_of_a_child_that_a_later_attempt_had_called_is_not_taken_for_an_early_one() -> None:
    def calls(argument: int, *, late: bool = False) -> Flow:
        async def flow(ctx: Context) -> Any:
            if late:
                await ctx.receive("go")
            got = await ctx.call(Call.named("a.v1", argument))
            if not late:
                await ctx.receive("go")
            return got

        return flow

    async def without(ctx: Context) -> str:
        await ctx.receive("go")
        return "no child called"

    failed = Record(seq=0, kind=RecordKind.STEP, location="x", payload="1", at=START)
    run = Driver(calls(1), attempt=2, history=[failed])
    run.complete("a.v1", 10)
    run.message("go")
    again = Driver(calls(1), attempt=2, history=run.history)
    assert (again.result, again.execution.warnings) == (10, [])
    for changed in (calls(2, late=True), calls(1, late=True), without):
        with pytest.raises(Diverged) as caught:
            Driver(changed, attempt=2, history=run.history)
        assert caught.value.expected == "record 1: child 'a.v1'"


def test_an_outcome_that_came_before_a_later_attempt_had_called_the_child_is_kept_for_its_call() -> None:
    async def flow(ctx: Context) -> Any:
        await ctx.receive("go")
        return await ctx.call(Call.named("a.v1", 1))

    failed = Record(seq=0, kind=RecordKind.STEP, location="x", payload="1", at=START)
    run = Driver(flow, attempt=2, history=[failed])
    run.late("a.v1")
    run.message("go")
    assert run.result == Driver(flow, attempt=2, history=run.history).result == 1


def test_what_was_never_recorded_may_change_freely() -> None:
    history = history_of(sequence(("a", 1), ("b", 2), ("c", 3)), "a")
    done = sequence(("a", 1))
    for changed in (
        done,
        sequence(("a", 1), ("c", 3)),
        sequence(("a", 1), ("renamed", 2), ("c", 3)),
        sequence(("a", 1), ("c", 3), ("b", 2)),
        sequence(("a", 1), ("new", 9), ("b", 2), ("c", 3)),
    ):
        run = Driver(changed, history=history)
        assert run.execution.warnings == []
        assert (run.outcome is None) == (changed is not done)
        assert run.execution.evict()


def test_parallel_siblings_may_be_listed_in_another_order() -> None:
    def parallel(*names: str) -> Flow:
        async def flow(ctx: Context) -> Any:
            return await asyncio.gather(*(named(ctx, name) for name in names))

        return flow

    history = history_of(parallel("a", "b", "c"), "b", "a")
    run = Driver(parallel("c", "b", "a", "new"), history=history)
    assert run.open == ["c", "new"]
    assert run.execution.evict()


def test_a_diverged_run_can_be_let_go_and_goes_on_with_code_that_fits() -> None:
    before = sequence(("charge", 1), ("ship", 2))
    history = history_of(before, "charge")
    difference(sequence(("bill", 1)), history)
    run = Driver(before, history=history)
    run.complete("ship", "s")
    assert run.result == ["charge", "s"]
