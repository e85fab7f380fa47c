"""Joins, races and maps: branches in scopes of their own, and each replayed."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import Callable, Generator
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from typing import Any, TypedDict

import pytest

from perdure import Branch, Context, NamedBranch, workflow
from perdure.errors import BadArguments, InvalidName, JoinError, RaceError, WorkflowError
from perdure.workflow.definition import Call
from perdure.workflow.scopes import Scope, current_scope, inside
from tests.replay.driver import Driver, named, work


async def two_steps(ctx: Context, key: str) -> str:
    first = await named(ctx, "first", key)
    return f"{first}+{await named(ctx, 'second', key)}"


def test_a_join_gives_the_results_of_all_branches_by_name() -> None:
    async def flow(ctx: Context) -> Any:
        return await ctx.join({"a": two_steps(ctx, "a"), "b": lambda inner: two_steps(inner, "b")}, name="fan")

    run = Driver(flow)
    assert run.open == ["fan/a/first", "fan/b/first"]
    run.complete("fan/b/first", "B")
    run.complete("fan/a/first", "A")
    run.complete("fan/a/second", "1")
    run.complete("fan/b/second", "2")
    assert run.settled().result == {"a": "A+1", "b": "B+2"}


def test_a_branch_counts_its_own_calls_whatever_goes_on_beside_it() -> None:
    async def branch(ctx: Context) -> list[Any]:
        return [await named(ctx, "work", 1), await named(ctx, "work", 2)]

    async def flow(ctx: Context) -> Any:
        return await asyncio.gather(ctx.join({"a": branch, "b": branch}), named(ctx, "work", 0))

    run = Driver(flow)
    assert run.open == ["work", "join/a/work", "join/b/work"]
    run.complete("join/a/work", 1)
    assert run.open == ["work", "join/b/work", "join/a/work#2"]


def test_sleeps_and_timeouts_of_asyncio_belong_to_the_branch_that_sets_them() -> None:
    async def branch(ctx: Context) -> str:
        try:
            async with asyncio.timeout(5):
                await asyncio.sleep(10)
        except TimeoutError:
            return "late"
        return "early"

    async def flow(ctx: Context) -> Any:
        return await ctx.join({"a": branch})

    run = Driver(flow)
    assert sorted(run.open) == ["join/a/sleep", "join/a/timer"]
    assert run.fire() == "join/a/timer"
    assert run.settled().result == {"a": "late"}


def test_a_join_waits_for_all_branches_and_names_every_error() -> None:
    async def flow(ctx: Context) -> Any:
        try:
            await ctx.join({"a": named(ctx, "a"), "b": named(ctx, "b"), "c": named(ctx, "c")})
        except JoinError as error:
            return [str(error), {key: repr(one) for key, one in error.errors.items()}, dict(error.results)]
        return None

    run = Driver(flow)
    run.fail("a", ValueError("no"))
    run.fail("c", KeyError("k"))
    assert run.open == ["b"]
    run.complete("b", 7)
    message, errors, results = run.settled().result
    assert "2 of 3 branches of 'join' failed: a: ValueError: no" in message
    assert (errors, results) == ({"a": "ValueError('no')", "c": "KeyError('k')"}, {"b": 7})


def test_a_cancelled_join_cancels_its_branches_and_waits_for_their_cleanup() -> None:
    async def careful(ctx: Context) -> None:
        try:
            await named(ctx, "work")
        finally:
            await named(ctx, "cleanup")

    async def flow(ctx: Context) -> Any:
        try:
            async with asyncio.timeout(1):
                await ctx.join({"a": careful, "b": named(ctx, "b")})
        except TimeoutError:
            return "cleaned up"
        return "done"

    run = Driver(flow)
    run.fire()
    assert run.open == ["join/a/cleanup"]
    run.complete("join/a/cleanup")
    assert run.settled().result == "cleaned up"


def test_a_race_gives_the_first_that_succeeds_and_cancels_the_others() -> None:
    async def flow(ctx: Context) -> Any:
        won = await ctx.race({"a": lambda c: two_steps(c, "a"), "b": lambda c: two_steps(c, "b")}, name="fast")
        return [won.winner, won.value, await named(ctx, "after")]

    run = Driver(flow)
    run.complete("fast/a/first", "A")
    run.complete("fast/b/first", "B")
    run.complete("fast/b/second", "2")
    assert run.open == ["after"]
    run.complete("after", "z")
    assert run.settled().result == ["b", "B+2", "z"]


@dataclass
class Checks:
    stock: NamedBranch[str]
    fraud: NamedBranch[str]


def test_a_join_of_a_dataclass_gives_each_field_the_result_of_its_branch() -> None:
    async def flow(ctx: Context) -> Any:
        given = Checks(ctx.branch(two_steps(ctx, "s")), fraud=ctx.branch(lambda inner: named(inner, "ask")))
        seen = [given.stock.status]
        joining = asyncio.ensure_future(ctx.join(given, name="checks"))
        await named(ctx, "look")
        seen += [given.stock.status, given.fraud.status]
        with pytest.raises(WorkflowError, match="a branch that is running has no result; await ctx.join first"):
            _ = given.stock.result
        checks = await joining
        assert checks is given
        return [*seen, checks.stock.result, checks.fraud.result, checks.fraud.status, checks.fraud.error]

    run = Driver(flow)
    assert run.open == ["look", "checks/stock/first", "checks/fraud/ask"]
    run.complete("checks/fraud/ask", "no")
    run.complete("look")
    run.complete("checks/stock/first", "S")
    run.complete("checks/stock/second", "2")
    assert run.settled().result == ["pending", "running", "completed", "S+2", "no", "completed", None]


class Quotes(TypedDict):
    near: NamedBranch[int]
    far: NamedBranch[int]


def test_a_failed_branch_of_a_typed_join_has_its_error_and_the_others_their_results() -> None:
    async def fails(ctx: Context) -> int:
        raise ValueError(await named(ctx, "far"))

    async def flow(ctx: Context) -> Any:
        quotes = Quotes(near=ctx.branch(lambda inner: named(inner, "near")), far=ctx.branch(fails))
        with pytest.raises(JoinError) as raised:
            await ctx.join(quotes)
        with pytest.raises(ValueError, match="too far"):
            _ = quotes["far"].result
        assert raised.value.results == {"near": 3}
        return [quotes["near"].result, quotes["far"].status, str(quotes["far"].error)]

    run = Driver(flow)
    run.complete("join/far/far", "too far")
    run.complete("join/near/near", 3)
    assert run.settled().result == [3, "failed", "too far"]


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda ctx: {"a": ctx.branch(work), "b": work}, "branch 'b' is not made by ctx.branch; make all or none"),
        (lambda _: Checks("x", "y"), "branch 'stock' is not made by ctx.branch"),  # type: ignore[arg-type] # the mistake
        (lambda ctx: ctx.branch(3), "ctx.branch takes an awaitable or a function that takes the context, not 3"),
        (
            lambda ctx: dict.fromkeys(("a", "b"), ctx.branch(work)),
            "was given to a join before; call ctx.branch for each",
        ),
        (lambda ctx: [ctx.branch(work)], "join takes branches by name"),
        (
            lambda ctx: {"a": [ctx.branch(work)]},
            "that takes the context: [<branch without a name: pending>]",
        ),
    ],
)
def test_a_mistaken_typed_join_is_refused(make: Callable[[Context], Any], problem: str) -> None:
    async def flow(ctx: Context) -> Any:
        with pytest.raises(BadArguments) as refused:
            await ctx.join(make(ctx))
        return str(refused.value)

    assert problem in Driver(flow).settled().result


def test_a_race_until_completion_ends_with_the_first_branch_that_ends() -> None:
    begun: list[str] = []

    async def branch(ctx: Context, key: str) -> str:
        begun.append(key)
        found: str = await named(ctx, key)
        if found == "bad":
            raise ValueError(key)
        return found

    async def flow(ctx: Context) -> Any:
        branches: dict[str, Branch[str]] = {key: partial(branch, key=key) for key in "ab"}
        try:
            won = await ctx.race(branches, until="completion")
        except ValueError as error:
            return [str(error), await named(ctx, "after")]
        return [won.winner, won.value, await named(ctx, "after")]

    run = Driver(flow)
    run.complete("race/b/b", "bad")
    assert run.open == ["after"]
    begun.clear()
    other = run.again()
    assert (begun, other.open) == (["b"], ["after"])
    other.complete("after", 1)
    assert other.result == ["b", 1]
    run = Driver(flow)
    run.complete("race/a/a", "good")
    run.complete("after", 2)
    assert run.settled().result == ["a", "good", 2]


def test_the_end_of_a_race_has_a_known_name() -> None:
    async def flow(ctx: Context) -> Any:
        with pytest.raises(BadArguments, match="race: until is 'success' or 'completion', not 'first'"):
            await ctx.race({"a": work}, until="first")  # type: ignore[arg-type] # the mistake
        return "refused"

    assert Driver(flow).settled().result == "refused"


def test_the_losers_of_a_race_leave_no_history_and_are_not_run_again() -> None:
    begun: list[str] = []

    async def branch(ctx: Context, key: str) -> str:
        begun.append(key)
        return await two_steps(ctx, key)

    async def flow(ctx: Context) -> Any:
        branches: dict[str, Branch[str]] = {"a": lambda c: branch(c, "a"), "b": branch(ctx, "b")}
        won = await ctx.race(branches)
        return [won.winner, await named(ctx, "after")]

    run = Driver(flow)
    run.complete("race/a/first", "A")
    run.complete("race/b/first", "B")
    run.complete("race/a/second", "1")
    assert [record.location for record in run.history] == ["race/a/first", "race/a/second", "race"]
    begun.clear()
    other = run.again()
    assert (begun, other.open) == (["a"], ["after"])
    other.complete("after", 1)
    assert other.result == ["a", 1]


def test_an_operation_that_a_losing_branch_was_given_is_given_up_on_replay_too() -> None:
    async def passed_on(operations: list[Any]) -> Any:
        return [await operation for operation in operations]

    async def flow(ctx: Context) -> Any:
        branches: dict[str, Branch[Any]] = {
            "a": two_steps(ctx, "a"),
            "b": asyncio.wait_for(named(ctx, "b"), 60),
            "c": passed_on([named(ctx, "c"), named(ctx, "d")]),
        }
        won = await ctx.race(branches)
        return [won.winner, await named(ctx, "after")]

    run = Driver(flow)
    run.complete("race/a/first", 1)
    run.complete("c", 1)
    run.complete("race/a/second", 2)
    assert run.open == ["after"]
    assert run.again().open == ["after"]
    run.complete("after", 3)
    assert run.settled().result == ["a", 3]


def test_the_order_in_which_sets_give_tasks_does_not_depend_on_what_was_let_go() -> None:
    async def winner(ctx: Context, turns: int) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)

    async def flow(ctx: Context) -> Any:
        orders = []
        for number in range(8):
            await ctx.race({f"b{each}": winner(ctx, each) for each in range(1 + number)})
            tasks = [asyncio.create_task(named(ctx, "work"), name=f"t{each}") for each in range(3)]
            done, _ = await asyncio.wait(tasks)
            orders.append([task.get_name() for task in done])
        return orders

    run = Driver(flow)
    for _ in range(8):
        for _ in range(3):
            run.complete(run.open[0])
    # The same on every replay, which settling looks at.
    assert [sorted(order) for order in run.settled().result] == [["t0", "t1", "t2"]] * 8


def test_a_child_of_a_branch_that_lost_may_end_when_the_race_is_over() -> None:
    async def flow(ctx: Context) -> Any:
        call = Call[Any].named("slow.v1")
        won = await ctx.race({"a": lambda c: c.call(call), "b": lambda c: named(c, "work")})
        return [won.winner, await named(ctx, "after")]

    run = Driver(flow)
    run.complete("race/b/work", 1)
    run.late("race/a/slow.v1")
    assert run.again().open == ["after"]
    run.complete("after", 1)
    assert run.settled().result == ["b", 1]


def test_a_race_that_is_cancelled_while_its_losers_clean_up_is_cancelled() -> None:
    async def careful(ctx: Context) -> None:
        try:
            await named(ctx, "work")
        finally:
            await ctx.shield(named(ctx, "cleanup"))

    async def flow(ctx: Context) -> Any:
        try:
            async with asyncio.timeout(5):
                await ctx.race({"a": careful, "b": lambda c: named(c, "work")})
        except TimeoutError:
            return "late"
        return "in time"

    run = Driver(flow)
    run.complete("race/b/work", 1)
    run.fire()
    run.complete("race/a/cleanup")
    assert run.settled().result == "late"


def test_branches_of_a_race_that_is_cancelled_before_it_begins_are_not_left_behind() -> None:
    async def flow(ctx: Context) -> Any:
        one, other = named(ctx, "one"), named(ctx, "other")
        ctx.race({"a": two_steps(ctx, "a"), "b": one}).cancel()
        ctx.join({"a": two_steps(ctx, "a"), "b": asyncio.wait_for(other, 5)}).cancel()
        return await named(ctx, "after")

    run = Driver(flow)
    assert run.open == ["after"]
    run.complete("after", 1)
    assert run.settled().result == 1


def test_a_run_that_is_let_go_says_nothing_about_branches_that_did_not_begin() -> None:
    async def flow(ctx: Context) -> Any:
        won = None
        try:
            won = await ctx.race({"a": two_steps(ctx, "a"), "b": named(ctx, "b")})
            await named(ctx, "after")
        finally:
            await ctx.join({"a": two_steps(ctx, "a")}, name="cleanup")
        return won

    run = Driver(flow)
    run.complete("b")
    other = run.again()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert run.execution.evict()
        assert other.execution.evict()
        gc.collect()


def test_a_branch_of_a_race_that_fails_leaves_the_win_to_another() -> None:
    async def flow(ctx: Context) -> Any:
        won = await ctx.race({"a": named(ctx, "a"), "b": named(ctx, "b")})
        return [won.winner, won.value]

    run = Driver(flow)
    run.fail("a", ValueError("no"))
    run.complete("b", 1)
    assert run.settled().result == ["b", 1]


def test_a_race_without_a_winner_raises_the_errors_of_all() -> None:
    async def flow(ctx: Context) -> Any:
        try:
            await ctx.race({"a": named(ctx, "a"), "b": named(ctx, "b")})
        except RaceError as error:
            return sorted(error.errors)
        return None

    run = Driver(flow)
    run.fail("b", ValueError("no"))
    run.fail("a", ValueError("no"))
    assert run.settled().result == ["a", "b"]


def test_records_beside_a_race_stay_when_it_is_over() -> None:
    async def flow(ctx: Context) -> Any:
        beside = asyncio.ensure_future(two_steps(ctx, "beside"))
        won = await ctx.race({"a": lambda c: two_steps(c, "a"), "b": lambda c: two_steps(c, "b")})
        return [won.winner, await beside]

    run = Driver(flow)
    run.complete("race/b/first", 1)
    run.complete("first", "x")
    run.complete("race/b/second", 2)
    run.complete("second", "y")
    assert run.settled().result == ["b", "x+y"]
    assert [record.location for record in run.history] == ["race/b/first", "first", "race/b/second", "race", "second"]


def test_a_map_runs_a_step_for_each_item_and_keeps_their_order() -> None:
    async def flow(ctx: Context) -> Any:
        return await ctx.map(work, ["x", "y", "z"], limit=2)

    run = Driver(flow)
    assert run.open == ["map/~0/work", "map/~1/work"]
    run.complete("map/~1/work", "Y")
    assert run.open == ["map/~0/work", "map/~2/work"]
    run.complete("map/~2/work", "Z")
    run.complete("map/~0/work", "X")
    assert run.settled().result == ["X", "Y", "Z"]


def test_a_map_over_a_function_of_the_context_runs_parts_of_the_workflow() -> None:
    async def part(ctx: Context, item: str) -> str:
        return await two_steps(ctx, item)

    async def flow(ctx: Context) -> Any:
        return await ctx.map(part, ["x"], name="parts")

    run = Driver(flow)
    run.complete("parts/~0/first", "1")
    run.complete("parts/~0/second", "2")
    assert run.settled().result == ["1+2"]


def test_the_first_error_of_a_map_cancels_the_rest() -> None:
    async def flow(ctx: Context) -> Any:
        try:
            await ctx.map(work, range(5), limit=3)
        except ValueError as error:
            return str(error)
        return None

    run = Driver(flow)
    run.complete("map/~0/work", 0)
    run.fail("map/~3/work", ValueError("third"))
    assert run.settled().result == "third"


def test_a_map_over_nothing_is_over_at_once() -> None:
    async def flow(ctx: Context) -> Any:
        return await ctx.map(work, [])

    assert Driver(flow).settled().result == []


@pytest.mark.parametrize("branches", [{"a/b": None}, {"a": 7}])
def test_branches_that_make_no_sense_are_refused(branches: Any) -> None:
    async def flow(ctx: Context) -> Any:
        await ctx.join(branches)

    assert isinstance(Driver(flow).error, BadArguments | InvalidName)


@workflow("branches.child.v1")
async def child(ctx: Context) -> int:
    return 1


def test_a_child_that_a_losing_branch_started_is_stopped() -> None:
    async def starts(ctx: Context) -> Any:
        ctx.spawn(child())
        return await named(ctx, "slow")

    async def flow(ctx: Context) -> Any:
        won = await ctx.race({"a": starts, "b": lambda ctx: named(ctx, "quick")})
        return [won.winner, await named(ctx, "after")]

    run = Driver(flow)
    run.complete("race/b/quick")
    assert [each.location for each in run.execution.dropped if each.kind == "child"] == ["race/a/branches.child.v1"]
    run.late("race/a/branches.child.v1")
    run.complete("after", 1)
    assert run.settled().result == ["b", 1]


def test_a_child_that_a_losing_branch_left_to_itself_goes_on() -> None:
    async def starts(ctx: Context) -> Any:
        ctx.spawn(child(), on_close="abandon")
        return await named(ctx, "slow")

    async def flow(ctx: Context) -> Any:
        won = await ctx.race({"a": starts, "b": lambda ctx: named(ctx, "quick")})
        return won.winner

    run = Driver(flow)
    run.complete("race/b/quick")
    assert [each.location for each in run.execution.dropped if each.kind == "child"] == []
    assert run.settled().result == "b"


def test_what_is_left_of_one_run_moves_no_other_to_another_place_when_it_is_closed() -> None:
    def part() -> Generator[None]:
        with inside(Scope("loop/~0/")):
            yield

    there, elsewhere = copy_context(), copy_context()
    there.run(current_scope.set, Scope("loop/"))
    other = Scope("other/")
    elsewhere.run(current_scope.set, other)
    left = part()
    there.run(next, left)
    # The garbage collector may do this at any time.
    elsewhere.run(left.close)
    assert elsewhere.run(current_scope.get) is other
