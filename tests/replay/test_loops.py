"""Loops whose history is let go behind them."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import Any

import pytest
from msgspec.structs import replace

from perdure import Break, Context, Continue, workflow
from perdure.core.model.record import RecordKind
from perdure.errors import BadArguments, WorkflowError
from perdure.workflow.definition import Call
from tests.replay.driver import Driver, named


@dataclass
class Cursor:
    page: int
    total: int = 0


async def turn_pages(ctx: Context, cursor: Cursor) -> Continue[Cursor] | Break[int]:
    found = await named(ctx, "fetch", cursor.page)
    if found == 0:
        return Break(cursor.total)
    return Continue(Cursor(cursor.page + 1, cursor.total + found))


async def paging(ctx: Context, commit_every: int, keep: int = 0) -> Any:
    total = await ctx.loop(Cursor(0), turn_pages, name="pages", commit_every=commit_every, keep=keep)
    return [total, await named(ctx, "after")]


def locations(run: Driver) -> list[str]:
    return [record.location for record in run.history]


def test_a_loop_goes_on_with_the_state_that_its_body_gives_until_it_breaks() -> None:
    run = Driver(paging, 2)
    for page, found in enumerate([5, 6, 7, 0]):
        run.complete(f"pages/~{page}/fetch", found)
    run.complete("after", "z")
    assert run.settled().result == [18, "z"]


def test_the_history_of_iterations_that_are_over_is_let_go() -> None:
    run = Driver(paging, 2)
    for page in range(4):
        run.complete(f"pages/~{page}/fetch", 1)
    assert locations(run) == ["pages"]
    run.complete("pages/~4/fetch", 1)
    assert locations(run) == ["pages", "pages/~4/fetch"]
    other = run.again()
    assert other.open == ["pages/~5/fetch"]
    other.complete("pages/~5/fetch", 0)
    assert locations(other) == ["pages"]
    assert other.again().open == ["after"]


def test_the_last_iterations_may_be_kept_for_people_to_read() -> None:
    run = Driver(paging, 2, 3)
    for page in range(8):
        run.complete(f"pages/~{page}/fetch", 1)
    assert locations(run) == ["pages/~5/fetch", "pages/~6/fetch", "pages/~7/fetch", "pages"]
    assert run.again().open == ["pages/~8/fetch"]
    run.complete("pages/~8/fetch", 0)
    run.complete("after", 0)
    assert run.settled().result == [8, 0]


async def _paging_from(ctx: Context, first: int) -> Any:
    with contextlib.suppress(ValueError):
        first = await named(ctx, "first")
    total = await ctx.loop(Cursor(first), turn_pages, name="pages", commit_every=2)
    return [total, await named(ctx, "after")]


BEGAN_OTHERWISE = "loop 'pages' goes on from its checkpoint, which was recorded when the loop began with another state"


def _taken_up(run: Driver, first: int, attempt: int = 1) -> Driver:
    return Driver(_paging_from, first, history=list(run.history), attempt=attempt)


@pytest.fixture
def begun() -> Driver:
    """A run whose loop began with page 0 and has recorded a checkpoint."""
    run = Driver(_paging_from, 0)
    run.fail("first", ValueError("down"))
    for page in range(2):
        run.complete(f"pages/~{page}/fetch", 1)
    assert [record.kind for record in run.history] == [RecordKind.STEP, RecordKind.SCOPE]
    return run


def test_changed_code_that_begins_a_loop_with_another_state_is_warned_until_the_next_checkpoint(begun: Driver) -> None:
    assert begun.again().execution.warnings == []
    changed = _taken_up(begun, 7)
    assert changed.execution.warnings == [BEGAN_OTHERWISE]
    for page in range(2, 4):
        changed.complete(f"pages/~{page}/fetch", 1)
    assert changed.again().execution.warnings == []


@pytest.mark.parametrize(("first", "warned"), [(0, 0), (7, 1)])
def test_a_later_attempt_that_begins_a_loop_with_another_state_logs_that_it_goes_on_from_the_checkpoint(
    begun: Driver, caplog: pytest.LogCaptureFixture, first: int, warned: int
) -> None:
    later = _taken_up(begun, 0, attempt=2)
    later.complete("first", first)
    assert [record.getMessage() for record in caplog.records] == [f"run run-1: {BEGAN_OTHERWISE}"] * warned
    assert later.open == ["pages/~2/fetch"]
    assert later.again().execution.warnings == []
    assert len(caplog.records) == warned, "it is said once"


def test_a_checkpoint_of_an_earlier_version_does_not_tell_how_its_loop_began(begun: Driver) -> None:
    begun.history[-1] = replace(
        begun.history[-1], payload='{"upto":2,"ended":false,"value":{"page":2,"total":2},"first":0}'
    )
    assert _taken_up(begun, 7).execution.warnings == []


def test_a_loop_may_begin_with_a_state_that_cannot_be_stored() -> None:
    async def body(ctx: Context, state: Any) -> Continue[Any] | Break[Any]:
        return Break(await named(ctx, "a"))

    async def flow(ctx: Context) -> Any:
        return await ctx.loop(lambda: None, body)

    run = Driver(flow)
    run.complete("loop/~0/a", 1)
    assert run.settled().result == 1


def test_what_runs_beside_a_loop_keeps_its_records() -> None:
    async def beside(ctx: Context) -> list[Any]:
        return [await named(ctx, "tick", number) for number in range(3)]

    async def flow(ctx: Context) -> Any:
        task = asyncio.ensure_future(beside(ctx))
        total = await ctx.loop(Cursor(0), turn_pages, commit_every=1)
        return [total, await task]

    run = Driver(flow)
    run.complete("tick", "a")
    run.complete("loop/~0/fetch", 1)
    run.complete("tick#2", "b")
    run.complete("loop/~1/fetch", 1)
    run.complete("loop/~2/fetch", 0)
    run.complete("tick#3", "c")
    assert run.settled().result == [2, ["a", "b", "c"]]
    assert locations(run) == ["tick", "tick#2", "loop", "tick#3"]


def test_messages_that_a_finished_iteration_received_are_let_go_with_it() -> None:
    async def body(ctx: Context, total: int) -> Continue[int] | Break[int]:
        number = await ctx.receive("number", int)
        return Break(total) if number < 0 else Continue(total + number)

    async def flow(ctx: Context) -> Any:
        return await ctx.loop(0, body, commit_every=2, keep=2)

    run = Driver(flow)
    for number in range(1, 6):
        run.message("number", number)
    assert [(record.location, record.payload) for record in run.history if record.kind == "message"] == [
        ("number", "5")
    ]
    run.message("number", -1)
    assert run.settled().result == 15


def test_a_message_that_was_not_received_outlives_the_iterations() -> None:
    async def body(ctx: Context, count: int) -> Continue[int] | Break[list[str]]:
        if count == 4:
            return Break([await ctx.receive("other", str)])
        await ctx.receive("number")
        return Continue(count + 1)

    async def flow(ctx: Context) -> Any:
        return await ctx.loop(0, body, commit_every=1)

    run = Driver(flow)
    run.message("other", "kept")
    for number in range(4):
        run.message("number", number)
    assert run.settled().result == ["kept"]


def test_loops_within_loops_let_go_of_their_own() -> None:
    async def inner(ctx: Context, count: int) -> Continue[int] | Break[int]:
        await named(ctx, "work", count)
        return Break(count) if count == 2 else Continue(count + 1)

    async def outer(ctx: Context, total: int) -> Continue[int] | Break[int]:
        total += await ctx.loop(0, inner, name="inner", commit_every=1)
        return Break(total) if total >= 6 else Continue(total)

    async def flow(ctx: Context) -> Any:
        return await ctx.loop(0, outer, name="outer", commit_every=2)

    run = Driver(flow)
    for big in range(3):
        for small in range(3):
            run.complete(f"outer/~{big}/inner/~{small}/work")
    assert run.settled().result == 6
    assert locations(run) == ["outer"]


def test_a_state_comes_back_as_the_body_declares_it() -> None:
    seen: list[Any] = []

    async def body(ctx: Context, state: dict[str, Cursor]) -> Continue[dict[str, Cursor]] | Break[Cursor]:
        seen.append(state)
        await named(ctx, "work")
        return Break(state["a"]) if state["a"].page == 2 else Continue({"a": Cursor(state["a"].page + 1)})

    async def flow(ctx: Context) -> Any:
        return await ctx.loop({"a": Cursor(0)}, body, commit_every=1)

    run = Driver(flow)
    run.complete("loop/~0/work")
    run.complete("loop/~1/work")
    seen.clear()
    run.again()
    assert seen == [{"a": Cursor(2)}]


def test_what_an_iteration_began_has_to_end_within_it() -> None:
    async def body(ctx: Context, count: int) -> Continue[int] | Break[int]:
        asyncio.ensure_future(named(ctx, "forgotten"))  # noqa: RUF006 - that nothing holds it is the point
        await named(ctx, "work")
        return Continue(count + 1)

    async def flow(ctx: Context) -> Any:
        return await ctx.loop(0, body, commit_every=1)

    run = Driver(flow)
    run.complete("loop/~0/work")
    assert isinstance(run.error, WorkflowError)
    assert "'loop/~0/forgotten' of run 'run-1' is still under way" in str(run.error)


def test_what_a_kept_iteration_began_has_to_end_within_it_too() -> None:
    async def body(ctx: Context, count: int) -> Continue[int] | Break[int]:
        asyncio.ensure_future(named(ctx, "forgotten"))  # noqa: RUF006 - that nothing holds it is the point
        return Continue(await named(ctx, "work"))

    async def flow(ctx: Context) -> Any:
        return await ctx.loop(0, body, commit_every=1, keep=5)

    run = Driver(flow)
    run.complete("loop/~0/work", 1)
    assert "'loop/~0/forgotten' of run 'run-1' is still under way" in str(run.error)


def test_what_an_iteration_without_records_began_has_to_end_within_it_too() -> None:
    async def body(ctx: Context, count: int) -> Continue[int] | Break[int]:
        if count == 0:
            asyncio.ensure_future(named(ctx, "forgotten"))  # noqa: RUF006 - that nothing holds it is the point
            return Continue(1)
        return Continue(await named(ctx, "work"))

    async def flow(ctx: Context) -> Any:
        return await ctx.loop(0, body, commit_every=1)

    assert "'loop/~0/forgotten' of run 'run-1' is still under way" in str(Driver(flow).error)


def test_a_receive_that_an_iteration_began_has_to_end_within_it_too() -> None:
    async def body(ctx: Context, count: int) -> Continue[int] | Break[int]:
        asyncio.ensure_future(ctx.receive("number"))  # noqa: RUF006 - that nothing holds it is the point
        return Continue(await named(ctx, "work"))

    async def flow(ctx: Context) -> Any:
        return await ctx.loop(0, body, commit_every=1)

    run = Driver(flow)
    run.complete("loop/~0/work", 1)
    assert "receive('number') in 'loop/~0' of run 'run-1' is still under way" in str(run.error)


def test_random_numbers_of_an_iteration_are_its_own_whatever_was_let_go() -> None:
    async def body(ctx: Context, count: int) -> Continue[int] | Break[str]:
        await named(ctx, "work", str(ctx.uuid()))
        return Break(str(ctx.uuid())) if count == 3 else Continue(count + 1)

    async def flow(ctx: Context) -> Any:
        return [str(ctx.uuid()), await ctx.loop(0, body, commit_every=2), str(ctx.uuid())]

    run = Driver(flow)
    given = set[str]()
    while run.outcome is None:
        operation = run.operation(run.open[0])
        given.add(operation.digest)
        run.complete(operation.location)
    assert len(given) == 4
    assert len(set(run.settled().result)) == 3


def test_a_child_that_was_given_up_may_end_when_its_iteration_is_long_over() -> None:
    async def body(ctx: Context, count: int) -> Continue[int] | Break[int]:
        try:
            await asyncio.wait_for(ctx.call(Call.named("slow.v1")), 5)
        except TimeoutError:
            return Continue(count + 1)
        return Break(count)

    async def flow(ctx: Context) -> Any:
        return await ctx.loop(0, body, commit_every=1)

    run = Driver(flow)
    run.fire()
    run.late("loop/~0/slow.v1")
    assert run.again().open == ["loop/~1/slow.v1", "loop/~1/timer"]
    run.fire()
    run.complete("loop/~2/slow.v1")
    run.settled()
    assert locations(run) == ["loop"]


def test_a_body_that_returns_neither_is_told_so() -> None:
    async def body(ctx: Context, count: int) -> Any:
        return count

    async def flow(ctx: Context) -> Any:
        return await ctx.loop(0, body)

    assert "Continue(state) or Break(value), not 0" in str(Driver(flow).error)


def test_a_loop_that_would_never_record_its_state_is_refused() -> None:
    async def flow(ctx: Context) -> Any:
        return await ctx.loop(0, turn_pages, commit_every=0)  # type: ignore[arg-type] # refused before the body is called

    assert isinstance(Driver(flow).error, BadArguments)


@workflow("loops.child.v1")
async def child(ctx: Context) -> int:
    return 1


def test_an_iteration_may_leave_a_child_to_itself() -> None:
    async def body(ctx: Context, count: int) -> Continue[int] | Break[int]:
        ctx.spawn(child(), on_close="abandon")
        await named(ctx, "work", count)
        return Break(count) if count == 2 else Continue(count + 1)

    async def flow(ctx: Context) -> Any:
        return await ctx.loop(0, body, commit_every=1)

    run = Driver(flow)
    for number in range(3):
        run.complete(f"loop/~{number}/work")
        if number < 2:
            run.late(f"loop/~{number}/loops.child.v1")
    assert run.settled().result == 2


async def credit() -> int:
    return 1


async def debit() -> int:
    return 2


def test_a_name_stands_for_a_function_within_one_iteration_whatever_was_let_go() -> None:
    async def body(ctx: Context, number: int) -> Continue[int] | Break[int]:
        await ctx.options(name="book").step(credit if number % 2 == 0 else debit)
        return Break(number) if number == 2 else Continue(number + 1)

    async def flow(ctx: Context) -> int:
        return await ctx.loop(0, body, name="books", commit_every=1)

    run = Driver(flow)
    run.complete("books/~0/book", 1)
    # One that goes on and one that begins anew without the first iteration see the same.
    assert run.open == run.again().open == ["books/~1/book"]
    run.complete("books/~1/book", 2)
    run.complete("books/~2/book", 1)
    assert run.settled().result == 2
