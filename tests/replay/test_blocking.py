"""Workflows that are a `def`: their code blocks, and behaves in all other respects as that of an `async def`."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import io
import pdb  # noqa: T100 - it is what is tested
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import pytest
from greenlet import getcurrent, greenlet

from perdure import Break, Context, Continue, Failed, NamedBranch, Status, Succeeded
from perdure.blocking import Context as BlockingContext
from perdure.core.codec.failure import Failure
from perdure.core.model.outputs import NewOutput
from perdure.errors import BadArguments, Diverged, JoinError, WorkflowError
from perdure.workflow.blocking import begin
from perdure.workflow.definition import Call
from perdure.workflow.greenlets import WorkflowGreenlet, drive
from tests.helpers import in_memory
from tests.replay.driver import Driver, codec, unwork, work
from tests.replay.test_eviction import Silence, let_go, silence

Flow = Callable[[BlockingContext], Any]

__all__ = ["silence"]


def blocking(flow: Flow) -> Callable[[Context], Any]:
    """A `def` workflow, as an execution calls it."""
    return lambda ctx: begin(flow, ctx)


def play(flow: Flow) -> Driver:
    return Driver(blocking(flow))


def named(ctx: BlockingContext, name: str, *args: Any) -> Any:
    return ctx.options(name=name).step(work, *(args or (name,)))


def greenlets() -> list[greenlet]:
    """Stacks of workflow code that are in memory."""
    gc.collect()
    return [one for one in in_memory(WorkflowGreenlet) if not one.dead]


# what a workflow says


def test_a_step_returns_its_value_and_raises_its_error() -> None:
    def flow(ctx: BlockingContext) -> Any:
        first = named(ctx, "a")
        try:
            return named(ctx, "b")
        except ValueError as error:
            return [first, str(error)]

    run = play(flow)
    assert run.open == ["a"]
    run.complete("a", 1)
    assert run.open == ["b"]
    run.fail("b", ValueError("no"))
    assert run.result == [1, "no"]
    run.settled()


def test_gather_calls_functions_concurrently() -> None:
    def flow(ctx: BlockingContext) -> Any:
        return ctx.gather(*(lambda name=name: named(ctx, name) for name in "abc"))

    run = play(flow)
    assert run.open == ["a", "b", "c"]
    for number, name in enumerate("cab"):
        run.complete(name, number)
    assert run.result == [1, 2, 0]
    run.settled()


def test_gather_raises_the_first_error_or_returns_all() -> None:
    def flow(ctx: BlockingContext) -> Any:
        errors = ctx.gather(lambda: named(ctx, "a"), lambda: named(ctx, "b"), return_exceptions=True)
        with pytest.raises(ValueError, match="two"):
            ctx.gather(lambda: named(ctx, "c"), lambda: named(ctx, "d"))
        return [str(each) for each in errors]

    run = play(flow)
    run.fail("b", ValueError("one"))
    run.complete("a", 1)
    run.fail("d", ValueError("two"))
    assert run.result == ["1", "one"]


def test_gather_refuses_what_is_no_function() -> None:
    def flow(ctx: BlockingContext) -> Any:
        async def coroutine() -> None:
            """Not for blocking code."""

        anything: Any = coroutine
        for wrong in (3, coroutine(), coroutine):
            anything = wrong
            with pytest.raises(BadArguments, match="functions without parameters"):
                ctx.gather(anything)
        return "refused"

    assert play(flow).result == "refused"


def test_branches_take_the_context_or_nothing() -> None:
    def flow(ctx: BlockingContext) -> Any:
        mixed: dict[str, Any] = {"one": lambda ctx: named(ctx, "a"), "two": lambda: named(ctx, "a")}
        racing: dict[str, Any] = {"one": lambda n="b": named(ctx, n), "two": lambda ctx: named(ctx, "b")}
        joined, won = ctx.join(mixed), ctx.race(racing)
        return [joined, won.winner, won.value]

    run = play(flow)
    assert run.open == ["join/one/a", "join/two/a"]
    run.complete("join/one/a", 1)
    run.complete("join/two/a", 2)
    run.complete("race/two/b", 3)
    assert run.result == [{"one": 1, "two": 2}, "two", 3]
    run.settled()


def test_a_join_names_the_branches_that_failed() -> None:
    def flow(ctx: BlockingContext) -> Any:
        with pytest.raises(JoinError) as caught:
            ctx.join({"one": lambda: named(ctx, "a"), "two": lambda: named(ctx, "b")})
        return [list(caught.value.errors), caught.value.results]

    run = play(flow)
    run.fail("join/one/a", ValueError("no"))
    run.complete("join/two/b", 2)
    assert run.result == [["one"], {"two": 2}]


@dataclass
class Checks:
    stock: NamedBranch[int]
    fraud: NamedBranch[str]


def test_branches_in_fields_have_results_of_their_own_types() -> None:
    def flow(ctx: BlockingContext) -> Any:
        checks = ctx.join(Checks(ctx.branch(lambda ctx: named(ctx, "a")), ctx.branch(lambda: named(ctx, "b"))))
        with pytest.raises(ValueError, match="no"):
            ctx.race({"one": lambda: named(ctx, "c"), "two": lambda: named(ctx, "d")}, until="completion")
        return [checks.stock.result, checks.fraud.status]

    run = play(flow)
    assert run.open == ["join/stock/a", "join/fraud/b"]
    run.complete("join/stock/a", 1)
    run.complete("join/fraud/b", "x")
    run.fail("race/two/d", ValueError("no"))
    assert run.result == [1, "completed"]
    run.settled()


def test_an_outcome_of_a_function_without_parameters_has_no_scope() -> None:
    def flow(ctx: BlockingContext) -> Any:
        first = ctx.outcome(lambda: named(ctx, "a"))
        second = ctx.outcome(lambda ctx: named(ctx, "a"))
        assert isinstance(first, Succeeded)
        assert isinstance(second, Failed)
        return [first.value, str(second.error)]

    run = play(flow)
    run.complete("a", 1)
    run.fail("outcome/a", ValueError("no"))
    assert run.result == [1, "no"]
    run.settled()


def test_a_map_runs_steps_or_workflow_code() -> None:
    def part(ctx: BlockingContext, item: int) -> Any:
        return named(ctx, "a", item)

    part.__annotations__["ctx"] = BlockingContext

    def flow(ctx: BlockingContext) -> Any:
        return [ctx.map(part, [1, 2], limit=1), ctx.options(name="s").map(work, [3])]

    run = play(flow)
    run.complete("map/~0/a", 1)
    run.complete("map/~1/a", 2)
    run.complete("map#2/~0/s", 3)
    assert run.result == [[1, 2], [3]]


def test_a_loop_keeps_its_history_short() -> None:
    def flow(ctx: BlockingContext) -> Any:
        def body(ctx: BlockingContext, state: int) -> Continue[int] | Break[str]:
            named(ctx, "a")
            return Break("end") if state == 3 else Continue(state + 1)

        return ctx.loop(0, body, commit_every=2)

    run = play(flow)
    for number in range(4):
        run.complete(f"loop/~{number}/a")
    assert run.result == "end"
    assert len(run.history) < 4
    run.settled()


def test_a_timeout_ends_a_block_and_a_shield_holds_it_off() -> None:
    def flow(ctx: BlockingContext) -> Any:
        seen: list[Any] = []
        with pytest.raises(TimeoutError), ctx.timeout("5s") as limit:
            seen.append(limit.expired())
            seen.append(ctx.shield(lambda: named(ctx, "a")))
        return seen

    run = play(flow)
    run.fire()
    assert run.open == ["a"]
    run.complete("a", 1)
    assert run.result == [False]
    run.settled()


def test_branches_share_a_lock_and_a_queue() -> None:
    def flow(ctx: BlockingContext) -> Any:
        lock, queue = asyncio.Lock(), asyncio.Queue[str]()

        def part(name: str) -> None:
            with ctx.enter(lock):
                named(ctx, name)
            ctx.wait(queue.put(name))

        ctx.gather(lambda: part("a"), lambda: part("b"))
        return [ctx.wait(queue.get()), ctx.wait(queue.get())]

    run = play(flow)
    assert run.open == ["a"]
    run.complete("a")
    run.complete("b")
    assert run.result == ["a", "b"]


def test_a_saga_undoes_its_steps() -> None:
    def flow(ctx: BlockingContext) -> Any:
        with pytest.raises(ValueError, match="no"), ctx.saga():
            ctx.options(name="a", undo=unwork).step(work, 1)
            named(ctx, "b")
        return "undone"

    run = play(flow)
    run.complete("a", 1)
    run.fail("b", ValueError("no"))
    assert run.open == ["a/~undo"]
    run.complete("a/~undo")
    assert run.result == "undone"
    run.settled()


def test_a_handler_of_questions_may_block() -> None:
    def flow(ctx: BlockingContext) -> Any:
        ctx.answer("price", lambda count: named(ctx, "look", count), int)
        return ctx.receive("end")

    run = play(flow)
    run.message("price~ask", {"key": "k1", "value": 3})
    run.message("price~ask", {"key": "k2", "value": 4})
    assert [one for one in run.open if "look" in one] == ["price/look", "price#2/look"]
    assert run.execution.effects == []
    run.complete("price/look", 30)
    [answer] = run.execution.effects
    assert isinstance(answer, NewOutput)
    assert (answer.name, answer.payload, answer.failed) == ("k1", "30", False)
    run.execution.effects.clear()
    run.fail("price#2/look", ValueError("sold out"))
    [answer] = run.execution.effects
    assert isinstance(answer, NewOutput)
    assert (answer.name, answer.failed) == ("k2", True)
    run.message("end", "done")
    assert run.settled().result == "done"


def test_a_child_is_called_spawned_cancelled_and_waited_for() -> None:
    def flow(ctx: BlockingContext) -> Any:
        child = ctx.spawn(Call.named("other.v1", 1))
        assert repr(child).startswith("<child ")
        child.send("m", 2)
        return [ctx.call(Call.named("one.v1", 1)), child.result(), child.result()]

    run = play(flow)
    run.complete("one.v1", 1)
    run.complete("other.v1", 2)
    assert run.result == [1, 2, 2]
    run.settled()


# cancellation and errors


def test_a_cancellation_is_raised_at_the_blocking_call() -> None:
    def flow(ctx: BlockingContext) -> Any:
        try:
            named(ctx, "a")
        except asyncio.CancelledError as error:
            return [str(error), named(ctx, "cleanup")]

    run = play(flow)
    run.cancel("too late")
    run.complete("cleanup", 1)
    assert (run.ended.status, run.ended.partial) == (Status.CANCELLED, '["too late",1]')
    run.settled()


def test_a_cancellation_reaches_the_branches_of_a_gather() -> None:
    seen: list[str] = []

    def flow(ctx: BlockingContext) -> Any:
        def part(name: str) -> None:
            try:
                named(ctx, name)
            finally:
                seen.append(name)

        ctx.gather(lambda: part("a"), lambda: part("b"))

    run = play(flow)
    run.cancel()
    assert str(run.ended.status) == "cancelled"
    assert seen == ["a", "b"]


def deeper(ctx: BlockingContext) -> None:
    named(ctx, "a")
    raise LookupError("mine")


def test_tracebacks_begin_with_the_users_frames_and_have_no_others() -> None:
    def flow(ctx: BlockingContext) -> Any:
        deeper(ctx)

    run = play(flow)
    run.complete("a")
    text = Failure.of(run.error, codec).traceback
    assert [line.split(", in ")[1] for line in text.splitlines() if ", in " in line] == ["flow", "deeper"]


def test_the_traceback_of_a_failed_step_ends_at_the_call_of_the_step() -> None:
    def flow(ctx: BlockingContext) -> Any:
        return ctx.options(name="a").step(work, 1)

    run = play(flow)
    run.fail("a", ValueError("no"))
    text = Failure.of(run.error, codec).traceback
    assert [line.split(", in ")[1] for line in text.splitlines() if ", in " in line] == ["flow"]
    names = [frame.name for frame in traceback.extract_tb(run.error.__traceback__)]
    assert "block" not in names
    assert "call" not in names


def test_recursion_in_blocking_code_is_the_usual_error() -> None:
    def endless(number: int) -> int:
        return endless(number + 1) + 1

    def flow(ctx: BlockingContext) -> Any:
        named(ctx, "a")
        try:
            endless(0)
        except RecursionError:
            return "caught"

    run = play(flow)
    run.complete("a")
    assert run.result == "caught"


def test_a_step_may_be_called_deep_in_the_stack() -> None:
    def down(ctx: BlockingContext, depth: int) -> Any:
        return named(ctx, "a") if depth == 0 else down(ctx, depth - 1)

    def flow(ctx: BlockingContext) -> Any:
        return ctx.gather(lambda: down(ctx, 300), lambda: down(ctx, 100))

    run = play(flow)
    run.complete("a", 1)
    run.complete("a#2", 2)
    assert run.result == [1, 2]


def test_code_that_asks_for_something_else_diverges() -> None:
    def flow(ctx: BlockingContext) -> Any:
        return named(ctx, "a")

    def changed(ctx: BlockingContext) -> Any:
        return named(ctx, "b")

    run = play(flow)
    run.complete("a", 1)
    with pytest.raises(Diverged):
        Driver(blocking(changed), history=run.history)
    assert greenlets() == []


def test_a_function_that_returns_a_coroutine_is_refused() -> None:
    async def coroutine() -> None:
        """Never awaited."""

    run = play(lambda ctx: coroutine())
    assert isinstance(run.error, WorkflowError)
    assert "returned a coroutine" in str(run.error)


# where a blocking context may be used


def test_a_coroutine_cannot_wait_by_a_blocking_context() -> None:
    def flow(ctx: BlockingContext) -> Any:
        async def part() -> None:
            ctx.receive_many("x", limit=1)

        with pytest.raises(WorkflowError, match="outside of the `def` code"):
            ctx.wait(part())
        return "refused"

    assert play(flow).result == "refused"


def test_another_thread_cannot_use_a_blocking_context() -> None:
    def flow(ctx: BlockingContext) -> Any:
        seen: list[str] = []

        def elsewhere() -> None:
            try:
                named(ctx, "a")
            except WorkflowError as error:
                seen.append(str(error))

        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        return seen

    [said] = play(flow).result
    assert "in another thread" in said


variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="none")


def test_context_variables_belong_to_the_task() -> None:
    def flow(ctx: BlockingContext) -> Any:
        variable.set("outer")
        named(ctx, "a")

        def part(name: str) -> str:
            seen = variable.get()
            variable.set(name)
            named(ctx, name)
            return f"{seen} {variable.get()}"

        return [*ctx.gather(lambda: part("b"), lambda: part("c")), variable.get()]

    run = play(flow)
    run.complete("a")
    run.complete("c")
    run.complete("b")
    assert run.result == ["outer b", "outer c", "outer"]
    assert variable.get() == "none"


def test_the_debugger_steps_over_a_blocking_call() -> None:
    told = io.StringIO()
    # From Python 3.13 on, the debugger begins at the line that starts it, and not at the next one.
    steps = "n\n" * (2 if sys.version_info >= (3, 13) else 1)
    orders = io.StringIO(f"{steps}p 'value', value\nc\n")
    before = sys.gettrace()

    def flow(ctx: BlockingContext) -> Any:
        pdb.Pdb(stdin=orders, stdout=told, nosigint=True, readrc=False).set_trace()
        value = named(ctx, "a")
        return value  # noqa: RET504 - the debugger looks at it

    run = play(flow)
    run.complete("a", 42)
    sys.settrace(before)
    assert run.result == 42
    assert "('value', 42)" in told.getvalue()


# letting go


def plain(ctx: BlockingContext) -> None:
    named(ctx, "a")


def durable_finally(ctx: BlockingContext) -> None:
    try:
        named(ctx, "a")
    finally:
        named(ctx, "undo")
        ctx.sleep(5)
        ctx.receive("told", timeout=5)


def catches_everything_once(ctx: BlockingContext) -> None:
    try:
        named(ctx, "a")
    except BaseException:
        named(ctx, "b")


def raises_another(ctx: BlockingContext) -> None:
    try:
        named(ctx, "a")
    except BaseException as error:
        raise ValueError("instead") from error


def logs_in_finally(ctx: BlockingContext) -> None:
    try:
        named(ctx, "a")
    finally:
        ctx.log.error("this never happened")


def in_a_gather(ctx: BlockingContext) -> None:
    ctx.gather(lambda: durable_finally(ctx), lambda: plain(ctx), return_exceptions=True)


def in_named_parts(ctx: BlockingContext) -> None:
    branches: dict[str, Any] = {"a": durable_finally, "b": lambda: ctx.race({"c": plain, "d": durable_finally})}
    ctx.join(branches)


def shielded(ctx: BlockingContext) -> None:
    with ctx.timeout(30), ctx.saga():
        ctx.shield(lambda: durable_finally(ctx))


def gathers_in_the_cleanup(ctx: BlockingContext) -> None:
    try:
        named(ctx, "a")
    finally:
        ctx.gather(lambda: plain(ctx), lambda: plain(ctx))


def outcome_in_the_cleanup(ctx: BlockingContext) -> None:
    try:
        named(ctx, "a")
    finally:
        ctx.outcome(lambda: named(ctx, "b"))


def numbers(ctx: BlockingContext) -> Iterator[int]:
    try:
        for number in range(3):
            yield number
            named(ctx, f"n{number}")
    finally:
        named(ctx, "closing")


def inside_a_generator(ctx: BlockingContext) -> None:
    for _ in numbers(ctx):
        pass


def leaves_a_generator(ctx: BlockingContext) -> None:
    items = numbers(ctx)
    next(items)
    named(ctx, "after")


def inside_a_context_manager(ctx: BlockingContext) -> None:
    @contextmanager
    def held() -> Iterator[None]:
        try:
            yield
        finally:
            named(ctx, "leave")

    with held():
        named(ctx, "a")


def ends_by_itself(ctx: BlockingContext) -> None:
    with suppress(BaseException):
        named(ctx, "a")


QUIET = [
    plain, durable_finally, catches_everything_once, raises_another, logs_in_finally, in_a_gather, in_named_parts,
    shielded, gathers_in_the_cleanup, outcome_in_the_cleanup, inside_a_generator, leaves_a_generator,
    inside_a_context_manager, ends_by_itself,
]  # fmt: skip


@pytest.mark.parametrize("flow", QUIET, ids=lambda flow: flow.__name__)
def test_letting_go_is_silent_and_leaves_no_greenlet(flow: Flow, silence: Silence) -> None:
    let_go(blocking(flow))
    assert greenlets() == []


def test_code_that_will_not_end_is_left_alone_in_silence(silence: Silence) -> None:
    calls, at_last = 0, False

    def flow(ctx: BlockingContext) -> None:
        nonlocal calls
        while not at_last:
            calls += 1
            try:
                named(ctx, "a")
            except BaseException:
                continue

    let_go(blocking(flow), ends=False)
    [left] = greenlets()
    assert calls < 100
    # Ended by hand, because it would stay for ever.
    at_last = True
    left.parent = getcurrent()
    left.throw(ValueError)
    assert left.dead


def test_a_run_that_was_let_go_can_be_taken_up_again() -> None:
    run = play(durable_finally)
    assert run.execution.evict()
    again = run.again()
    again.complete("a")
    assert again.open == ["undo"]


def test_a_run_that_has_ended_keeps_no_greenlet() -> None:
    run = play(plain)
    assert len(greenlets()) == 1
    run.complete("a")
    assert run.result is None
    assert greenlets() == []


def test_a_driver_that_is_resumed_in_another_greenlet_goes_on_there() -> None:
    run = play(lambda ctx: [named(ctx, "a"), named(ctx, "b")])
    greenlet(lambda: run.complete("a", 1)).switch()
    run.complete("b", 2)
    assert run.result == [1, 2]


async def test_a_function_that_waits_for_nothing_needs_no_wait() -> None:
    runtime: Any = None
    assert await drive(runtime, lambda: 3) == 3
