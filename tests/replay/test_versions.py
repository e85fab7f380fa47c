"""Code that changes under living runs: those that had passed the place of the change keep to what they did."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from perdure import Break, Context, Continue, UsageError, workflow
from perdure.core.model.record import Record, RecordKind
from perdure.errors import Diverged
from tests.replay.driver import Driver, Function, deed, named


@workflow("test.child.v1")
async def child(ctx: Context, number: int) -> int:
    return number


def recorded(flow: Function, *locations: str) -> list[Record]:
    """The history of a run in which these completed, as a worker would find it."""
    run = Driver(flow)
    for location in locations:
        if location == "sleep":
            run.fire()
        else:
            run.complete(location, 1)
    history = list(run.history)
    run.execution.evict()
    return history


def pins(history: list[Record]) -> list[tuple[str, str | None]]:
    return [(record.location, record.payload) for record in history if record.kind is RecordKind.VERSION]


async def old(ctx: Context) -> Any:
    await named(ctx, "a")
    await named(ctx, "b")
    return "old"


async def new(ctx: Context) -> Any:
    await named(ctx, "a")
    if ctx.patched("tax"):
        await named(ctx, "tax")
    await named(ctx, "b")
    return "new"


def test_a_run_that_had_passed_the_place_keeps_to_the_old_code() -> None:
    assert Driver(new, history=recorded(old, "a", "b")).result == "new"
    half = Driver(new, history=recorded(old, "a"))
    assert half.open == ["b"]
    half.complete("b")
    assert half.result == "new"
    assert pins(half.history) == []


def test_a_run_that_comes_to_the_place_later_follows_the_new_code_for_good() -> None:
    run = Driver(new, history=recorded(old))
    run.complete("a")
    assert run.open == ["tax"]
    assert pins(run.history) == [("tax", "1")]
    again = run.again()
    assert again.open == ["tax"]
    again.complete("tax")
    again.complete("b")
    assert again.again().result == "new"


def test_the_pin_leaves_with_the_record_that_led_to_it() -> None:
    run = Driver(new)
    run.execution.record(RecordKind.STEP, "a", "1", 0)
    assert [record.kind for record in run.execution.unsaved] == [RecordKind.STEP, RecordKind.VERSION]
    assert [record.seq for record in run.execution.unsaved] == [0, 1]


def test_a_place_before_the_first_record_is_new_to_a_run_without_a_history() -> None:
    async def flow(ctx: Context) -> Any:
        return [ctx.patched("first"), ctx.version("second", 3), await named(ctx, "a")]

    run = Driver(flow)
    assert pins(run.history) == [("first", "1"), ("second", "3")]
    run.complete("a", "end")
    assert run.again().result == run.result == [True, 3, "end"]


def test_after_a_transaction_that_stands_alone_the_code_is_new() -> None:
    async def before(ctx: Context) -> Any:
        await deed(ctx, "a")
        await named(ctx, "b")

    async def after(ctx: Context) -> Any:
        await deed(ctx, "a")
        return ctx.patched("tax")

    run = Driver(before)
    run.complete("a", 1)
    assert Driver(after, history=run.history).result is True
    run.complete("b", 1)
    with pytest.raises(Diverged):
        Driver(after, history=run.history)


def test_a_version_stays_what_it_was_when_the_run_came_by() -> None:
    def code(latest: int) -> Function:
        async def flow(ctx: Context) -> Any:
            await named(ctx, "a")
            version = ctx.version("tax", latest)
            await named(ctx, f"tax-{version}")
            return version

        return flow

    async def without(ctx: Context) -> Any:
        await named(ctx, "a")
        await named(ctx, "tax-0")

    assert Driver(code(3), history=recorded(without, "a", "tax-0")).result == 0
    history = recorded(code(2), "a", "tax-2")
    assert Driver(code(3), history=history).result == 2
    assert Driver(code(3), history=recorded(code(3), "a", "tax-3")).result == 3
    with pytest.raises(Diverged, match="it is 2, and the code knows none after 1"):
        Driver(code(1), history=history)


def test_each_place_has_its_own_version() -> None:
    async def ask(ctx: Context) -> bool:
        return ctx.patched("tax")

    async def flow(ctx: Context, passes: int) -> Any:
        seen = []
        for _ in range(passes):
            await named(ctx, "a")
            seen.append(ctx.patched("tax"))
        branches = await ctx.join({"left": ask, "right": ask})
        return [*seen, branches]

    run = Driver(flow, 2)
    run.complete("a")
    run.complete("a#2")
    assert run.result == [True, True, {"left": True, "right": True}]
    assert [location for location, _ in pins(run.history)] == ["tax", "tax#2", "join/left/tax", "join/right/tax"]
    assert run.again().result == run.result


def test_iterations_under_way_keep_the_old_code_and_later_ones_follow_the_new() -> None:
    def code(*, changed: bool) -> Function:
        async def flow(ctx: Context) -> Any:
            async def body(ctx: Context, seen: list[bool]) -> Continue[list[bool]] | Break[list[bool]]:
                patched = changed and ctx.patched("tax")
                await named(ctx, "a")
                seen = [*seen, patched]
                return Break(seen) if len(seen) == 3 else Continue(seen)

            start: list[bool] = []
            return await ctx.loop(start, body, name="loop")

        return flow

    before = Driver(code(changed=False))
    _advance(before, "loop/~0/a")
    history = list(before.history)
    run = Driver(code(changed=True), history=history)
    for number in (1, 2):
        _advance(run, f"loop/~{number}/a")
    assert run.result == [False, False, True]
    assert run.again().result == run.result


def _advance(run: Driver, location: str) -> None:
    run.complete(location, 1)


def test_a_name_of_a_step_is_free_for_a_version() -> None:
    async def flow(ctx: Context) -> Any:
        first = ctx.patched("a")
        await named(ctx, "a")
        second = ctx.patched("a")
        await named(ctx, "a")
        return [first, second]

    run = Driver(flow)
    run.complete("a")
    run.complete("a#2")
    assert run.result == run.again().result == [True, True]


def test_a_version_that_the_code_dropped_is_missed_until_it_says_so() -> None:
    async def dropped(ctx: Context) -> Any:
        await named(ctx, "a")
        await named(ctx, "tax")
        return "dropped"

    async def said(ctx: Context) -> Any:
        await named(ctx, "a")
        await ctx.removed("tax", "version")
        await named(ctx, "tax")
        return "said"

    history = recorded(new, "a", "tax")
    with pytest.raises(Diverged, match=r'say ctx.removed\("tax", "version"\)'):
        Driver(dropped, history=history)
    run = Driver(said, history=history)
    with pytest.raises(AssertionError):
        run.operation("b")
    fresh = Driver(said)
    fresh.complete("a")
    fresh.complete("tax")
    assert fresh.settled().result == "said"


async def without_b(ctx: Context) -> Any:
    first = await named(ctx, "a")
    await ctx.removed("b", "step")
    time = ctx.now().isoformat()
    return [first, time, await named(ctx, "b"), await named(ctx, "c")]


async def with_b(ctx: Context) -> Any:
    await named(ctx, "a")
    await named(ctx, "b")
    await named(ctx, "b")
    await named(ctx, "c")


@pytest.mark.parametrize("cut", range(5))
def test_a_step_that_was_removed_is_passed_over_wherever_the_run_stood(cut: int) -> None:
    history = recorded(with_b, *["a", "b", "b#2", "c"][:cut])
    run = Driver(without_b, history=history)
    for location in ["a", "b#2", "c"]:
        if location in run.open:
            run.complete(location, 1)
    assert [run.result[0], *run.result[2:]] == [1, 1, 1]
    assert run.again().result == run.result


async def unguarded(ctx: Context) -> Any:
    cents = await named(ctx, "a")
    cents = await named(ctx, "tax", cents)
    return [cents, await named(ctx, "b", cents)]


async def mended(ctx: Context) -> Any:
    new = ctx.patched("tax")
    cents = await named(ctx, "a")
    if new:
        cents = await named(ctx, "tax", cents)
    elif (taxed := await ctx.removed("tax", "step")) is not None:
        cents = taxed
    return [cents, await named(ctx, "b", cents)]


@pytest.mark.parametrize(
    ("flow", "done", "cents"),
    [
        (old, [("a", 1)], 1),
        (old, [("a", 1), ("b", 5)], 1),
        (unguarded, [("a", 1)], 1),
        (unguarded, [("a", 1), ("tax", {"cents": 3})], {"cents": 3}),
        (unguarded, [("a", 1), ("tax", {"cents": 3}), ("b", 5)], {"cents": 3}),
        (mended, [], 7),
    ],
)
def test_a_change_that_was_deployed_without_a_guard_is_mended_for_every_run(
    flow: Function, done: list[tuple[str, Any]], cents: Any
) -> None:
    before = Driver(flow)
    for location, value in done:
        before.complete(location, value)
    history = list(before.history)
    before.execution.evict()
    run = Driver(mended, history=history)
    for location, value in [("a", 1), ("tax", 7), ("b", 5)]:
        if location in run.open:
            run.complete(location, value)
    assert run.result == run.again().result == [cents, 5]


def test_the_result_of_what_was_removed_is_plain_data_or_nothing() -> None:
    async def before(ctx: Context) -> Any:
        for name in ["failed", "nothing"]:
            with contextlib.suppress(ValueError):
                await named(ctx, name)
        await ctx.sleep(1)
        await ctx.call(child(1))
        return await named(ctx, "end")

    async def after(ctx: Context) -> Any:
        steps = [await ctx.removed(name, "step") for name in ["failed", "nothing", "never"]]
        slept = await ctx.removed("sleep", "timer")
        return [*steps, slept, await ctx.removed("test.child.v1", "child"), await named(ctx, "end")]

    run = Driver(before)
    run.fail("failed", ValueError("no"))
    run.complete("nothing", None)
    run.fire()
    run.complete("test.child.v1", 9)
    changed = Driver(after, history=run.history)
    changed.complete("end", "done")
    assert changed.result == changed.again().result == [None, None, None, None, 9, "done"]


def test_attempts_at_a_step_that_was_removed_are_passed_over() -> None:
    before = Driver(with_b)
    before.complete("a", 1)
    before.stumble("b", ValueError("no"))
    run = Driver(without_b, history=before.history)
    assert run.open == ["b#2"]
    run.complete("b#2")
    assert run.again().open == ["c"]


def test_a_timer_and_a_child_that_were_removed_are_passed_over() -> None:
    async def before(ctx: Context) -> Any:
        await ctx.sleep(1)
        await ctx.call(child(1))
        await asyncio.sleep(2)
        return await named(ctx, "end")

    async def after(ctx: Context) -> Any:
        await ctx.removed("sleep", "timer")
        await ctx.removed("test.child.v1", "child")
        await asyncio.sleep(2)
        return await named(ctx, "end")

    run = Driver(before)
    cuts = [list(run.history)]
    run.fire()
    cuts.append(list(run.history))
    run.complete("test.child.v1", 1)
    cuts.append(list(run.history))
    run.fire()
    cuts.append(list(run.history))
    for history in cuts:
        changed = Driver(after, history=history)
        if "sleep#2" in changed.open:
            changed.fire()
        changed.complete("end", "done")
        assert changed.result == changed.again().result == "done"


def test_a_removed_child_that_ends_late_is_not_heard() -> None:
    async def before(ctx: Context) -> Any:
        await named(ctx, "a")
        return await ctx.call(child(1))

    async def after(ctx: Context) -> Any:
        await named(ctx, "a")
        await ctx.removed("test.child.v1", "child")
        return await named(ctx, "end")

    run = Driver(after, history=recorded(before, "a"))
    run.late("test.child.v1")
    run.complete("end", "done")
    assert run.again().result == "done"


async def _calls(ctx: Context) -> Any:
    await named(ctx, "a")
    called = await ctx.call(child(1))
    await ctx.receive("go")
    return called


async def _removed_call(ctx: Context) -> Any:
    await named(ctx, "a")
    called = await ctx.removed("test.child.v1", "child")
    await ctx.receive("go")
    return called


async def _step_instead(ctx: Context) -> Any:
    await named(ctx, "a")
    await ctx.removed("test.child.v1", "child")
    await named(ctx, "instead")
    await ctx.receive("go")


def test_a_removed_child_that_ends_after_its_answer_is_not_waited_for_when_the_run_is_taken_up_again() -> None:
    run = Driver(_step_instead, history=recorded(_calls, "a"))
    run.complete("instead")
    run.late("test.child.v1")
    assert run.again().open == run.open == ["receive:go"]


def test_the_answer_of_a_removed_child_stays_nothing_however_often_the_child_ends() -> None:
    run = Driver(_removed_call, history=recorded(_calls, "a"))
    for _ in range(2):
        run.late("test.child.v1")
        run = run.again()
    run.message("go")
    assert run.result is run.again().result is None


def test_a_removed_child_that_had_ended_keeps_its_answer_when_it_ends_again() -> None:
    run = Driver(_removed_call, history=recorded(_calls, "a", "test.child.v1"))
    run.late("test.child.v1")
    run.message("go")
    assert run.result == run.again().result == 1


def test_code_that_is_rolled_back_takes_the_outcome_that_its_successor_did_not_hear() -> None:
    run = Driver(_removed_call, history=recorded(_calls, "a"))
    run.late("test.child.v1")
    before = Driver(_calls, history=run.history)
    before.message("go")
    assert before.result == before.again().result == 1
    assert before.execution.warnings == before.again().execution.warnings == []


def test_a_removed_step_does_not_take_the_early_outcome_of_a_child() -> None:
    async def flow(ctx: Context) -> Any:
        await ctx.receive("go")
        return await ctx.removed("test.child.v1", "step")

    earlier = Record(seq=0, kind=RecordKind.STEP, location="a", payload="1", at=0, digest="d", run_attempt=1)
    run = Driver(flow, attempt=2, history=[earlier])
    run.late("test.child.v1")
    run.message("go")
    assert run.result is run.again().result is None


def test_something_else_than_what_was_removed_still_diverges() -> None:
    async def wrong(ctx: Context) -> Any:
        await named(ctx, "a")
        await ctx.removed("b", "timer")
        return await named(ctx, "c")

    with pytest.raises(Diverged):
        Driver(wrong, history=recorded(with_b, "a", "b"))


@pytest.mark.parametrize("latest", [0, -1, True, 1.5, "2"])
def test_a_version_is_a_whole_number_from_one(latest: Any) -> None:
    async def flow(ctx: Context) -> Any:
        return ctx.version("tax", latest)

    assert isinstance(Driver(flow).error, UsageError)


def test_what_cannot_be_removed_is_refused() -> None:
    async def flow(ctx: Context) -> Any:
        await ctx.removed("tax", "branch")  # type: ignore[arg-type] # wrong on purpose

    assert "step, timer, child, version" in str(Driver(flow).error)
