"""Middleware around workflows, steps and activities."""

from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar
from typing import Any

import pytest

from perdure import (
    Activity,
    Context,
    Pending,
    Retry,
    RunFailed,
    Status,
    StepTimeout,
    activity,
    activity_info,
    blocking,
    step,
    step_info,
    workflow,
)
from perdure.errors import RunCancelled, UsageError
from perdure.middleware import Invocation, Middleware, Next
from tests.helpers import eventually
from tests.stage import Stage, until
from tests.workflow.crunching import add

seen: list[Any] = []
tenant: ContextVar[str] = ContextVar("tenant", default="none")


@pytest.fixture(autouse=True)
def _fresh() -> None:
    seen.clear()


class Noting(Middleware):
    """Notes the way in and out of everything, with `async def` methods."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def _note(self, call: Invocation, next: Next) -> Any:
        seen.append(f"{self.name}> {call.kind}")
        try:
            return await next(call)
        finally:
            seen.append(f"{self.name}< {call.kind}")

    workflow = step = activity = _note


class NotingBlocking(Middleware):
    """Does the same around steps and activities, with `def` methods."""

    def __init__(self, name: str) -> None:
        self.name = name

    def _note(self, call: Invocation, next: Next) -> Any:
        seen.append((f"{self.name}> {call.kind}", threading.current_thread() is threading.main_thread()))
        try:
            return next(call)
        finally:
            seen.append(f"{self.name}< {call.kind}")

    step = activity = _note


async def on_loop(value: int) -> int:
    seen.append("on_loop")
    return value


def in_thread(value: int) -> int:
    seen.append("in_thread")
    return value


async def in_transaction(connection: object, value: int) -> int:
    seen.append("in_transaction")
    return value


@activity("middleware.leaf.v1")
async def leaf(value: int) -> int:
    seen.append("leaf")
    return value


@activity("middleware.leaf_in_thread.v1")
def leaf_in_thread(value: int) -> int:
    seen.append("leaf")
    return value


@workflow("middleware.one_step.v1")
async def one_step(ctx: Context, value: int) -> int:
    return await ctx.step(on_loop, value)


async def test_the_first_middleware_is_outermost(stage: Stage) -> None:
    async with stage.engine(one_step, middleware=[Noting("a"), Noting("b")]) as engine, engine.worker():
        assert await (await engine.start(one_step(3))).result() == 3
    assert seen == [
        "a> workflow", "b> workflow", "a> step", "b> step", "on_loop", "b< step", "a< step", "b< workflow",
        "a< workflow",
    ]  # fmt: skip


@workflow("middleware.kinds.v1")
async def kinds(ctx: Context, value: int) -> list[int]:
    return [
        await ctx.step(on_loop, value),
        await ctx.step(in_thread, value),
        await ctx.transaction(in_transaction, value),
        await ctx.call(leaf(value)),
        await ctx.call(leaf_in_thread(value)),
    ]


class Changing(Middleware):
    """Changes arguments and results."""

    async def workflow(self, call: Invocation, next: Next, /) -> Any:
        [result] = [await next(call.with_arguments(value=call.kwargs["value"] + 1000))]
        return [*result, 0]

    async def step(self, call: Invocation, next: Next, /) -> Any:
        return await next(call.with_arguments(call.args[0] + 100)) * 2

    async def activity(self, call: Invocation, next: Next, /) -> Any:
        return -await next(call.with_arguments(value=call.kwargs["value"] + 10))


class ChangingSteps(Middleware):
    """Changes arguments and results of steps only."""

    step = Changing.step


class ChangingBlocking(Middleware):
    """Does the same with `def` methods, where it can."""

    def step(self, call: Invocation, next: Next, /) -> Any:
        result = next(call.with_arguments(call.args[0] + 100))
        return doubled(result) if asyncio.iscoroutine(result) else result * 2

    def activity(self, call: Invocation, next: Next, /) -> Any:
        result = next(call.with_arguments(value=call.kwargs["value"] + 10))
        return negative(result) if asyncio.iscoroutine(result) else -result


async def doubled(result: Any) -> Any:
    return await result * 2


async def negative(result: Any) -> Any:
    return -await result


async def test_arguments_and_results_are_replaced(stage: Stage) -> None:
    async with stage.engine(kinds, leaf, leaf_in_thread, middleware=[Changing()]) as engine, engine.worker():
        assert await (await engine.start(kinds(1))).result() == [2202, 2202, 2202, -1011, -1011, 0]


async def test_def_methods_replace_arguments_and_results(stage: Stage) -> None:
    async with stage.engine(kinds, leaf, leaf_in_thread, middleware=[ChangingBlocking()]) as engine, engine.worker():
        assert await (await engine.start(kinds(1))).result() == [202, 202, 202, -11, -11]


async def test_a_def_method_runs_in_the_thread_of_a_def_function(stage: Stage) -> None:
    layers = [Noting("a"), NotingBlocking("b"), NotingBlocking("c")]
    async with stage.engine(one_in_thread, leaf_in_thread, middleware=layers) as engine, engine.worker():
        assert await (await engine.start(one_in_thread(1))).result() == 1
        assert seen[1:-1] == [
            "a> step", ("b> step", False), ("c> step", False), "in_thread", "c< step", "b< step", "a< step",
        ]  # fmt: skip
        seen.clear()
        assert await (await engine.start(leaf_in_thread(1))).result() == 1
        assert seen == [
            "a> activity", ("b> activity", False), ("c> activity", False), "leaf", "c< activity", "b< activity",
            "a< activity",
        ]  # fmt: skip


@workflow("middleware.in_thread.v1")
async def one_in_thread(ctx: Context, value: int) -> int:
    return await ctx.step(in_thread, value)


async def test_def_methods_alone_run_in_the_thread(stage: Stage) -> None:
    async with stage.engine(one_in_thread, middleware=[NotingBlocking("a")]) as engine, engine.worker():
        assert await (await engine.start(one_in_thread(1))).result() == 1
    assert seen == [("a> step", False), "in_thread", "a< step"]


@workflow("middleware.blocking.v1")
def from_def(ctx: blocking.Context, value: int) -> int:
    return ctx.step(in_thread, value)


async def test_a_def_workflow_is_surrounded(stage: Stage) -> None:
    async with stage.engine(from_def, middleware=[Noting("a")]) as engine, engine.worker():
        assert await (await engine.start(from_def(4))).result() == 4
    assert seen == ["a> workflow", "a> step", "in_thread", "a< step", "a< workflow"]


class Recording(Middleware):
    """Keeps the calls."""

    def __init__(self) -> None:
        self.calls: list[Invocation] = []

    def workflow(self, call: Invocation, next: Next, /) -> Any:
        self.calls.append(call)
        return next(call)

    step = activity = workflow


async def test_a_call_says_what_is_called(stage: Stage) -> None:
    calls = Recording()
    async with stage.engine(kinds, leaf, leaf_in_thread, middleware=[calls]) as engine, engine.worker():
        await (await engine.start(kinds(7), id="one", headers={"tenant": "acme"})).result()
    found = {(call.kind, call.location): call for call in calls.calls}
    assert len(found) == 6
    assert {call.headers["tenant"] for call in calls.calls} == {"acme"}
    run = found["workflow", ""]
    assert (run.run_id, run.type, run.attempt, run.args, run.kwargs) == ("one", kinds.type, 1, (), {"value": 7})
    first = found["step", "on_loop"]
    assert (first.run_id, first.type, first.attempt, first.args, first.kwargs) == ("one", kinds.type, 1, (7,), {})
    assert first.function is on_loop
    assert found["step", "in_transaction"].args == (7,)
    last = found["activity", leaf.type]
    assert (last.run_id, last.type, last.attempt, last.kwargs) == ("one/" + leaf.type, leaf.type, 1, {"value": 7})
    assert last.function is leaf.function


class Scoping(Middleware):
    """Makes the tenant of the headers a context variable."""

    def _scope(self, call: Invocation, next: Next) -> Any:
        tenant.set(call.headers.get("tenant", "none"))
        return next(call)

    workflow = step = activity = _scope


class ScopingWorkflows(Middleware):
    async def workflow(self, call: Invocation, next: Next, /) -> Any:
        tenant.set(call.headers["tenant"])
        return await next(call)


async def tenant_on_loop() -> str:
    return tenant.get()


def tenant_in_thread() -> str:
    return tenant.get()


async def tenant_in_transaction(connection: object) -> str:
    return tenant.get()


@activity("middleware.tenant.v1")
def tenant_of_activity() -> str:
    return tenant.get()


@workflow("middleware.tenants.v1")
async def tenants(ctx: Context) -> list[str]:
    await ctx.receive("go")
    return [
        tenant.get(),
        await ctx.step(tenant_on_loop),
        await ctx.step(tenant_in_thread),
        await ctx.transaction(tenant_in_transaction),
        await ctx.call(tenant_of_activity()),
    ]


async def test_context_variables_of_middleware_reach_what_it_surrounds_also_after_a_replay(on_disk: Stage) -> None:
    for layer, expected in ((Scoping(), ["acme"] * 5), (ScopingWorkflows(), ["acme"] * 4 + ["none"])):
        async with on_disk.engine(tenants, tenant_of_activity, middleware=[layer]) as engine:
            run = await engine.start(tenants(), headers={"tenant": "acme"})
            async with engine.worker():
                await until(run, Status.WAITING)
            await run.send("go")
            async with engine.worker():
                assert await run.result() == expected


# Errors


class Refusing(Middleware):
    """Raises an error before the function, a few times."""

    def __init__(self, times: int) -> None:
        self.left = times

    async def step(self, call: Invocation, next: Next, /) -> Any:
        seen.append(call.attempt)
        if self.left:
            self.left -= 1
            raise ConnectionError("no tenant")
        return await next(call)

    activity = step


@workflow("middleware.retried.v1")
async def retried(ctx: Context) -> int:
    return await ctx.options(retry=Retry(attempts=3, initial=0.001)).step(on_loop, 1)


async def test_an_error_of_middleware_is_an_error_of_the_step(stage: Stage) -> None:
    async with stage.engine(retried, middleware=[Refusing(2)]) as engine, engine.worker():
        assert await (await engine.start(retried())).result() == 1
        assert seen == [1, 2, 3, "on_loop"]


async def test_the_last_error_of_middleware_fails_the_step(stage: Stage) -> None:
    async with stage.engine(retried, middleware=[Refusing(3)]) as engine, engine.worker():
        run = await engine.start(retried())
        with pytest.raises(RunFailed, match="no tenant") as caught:
            await run.result()
        assert isinstance(caught.value.__cause__, ConnectionError)
        assert seen == [1, 2, 3]


@activity("middleware.flaky.v1", retry=Retry(attempts=2, initial=0.001))
async def flaky() -> int:
    return 1


async def test_an_error_of_middleware_is_an_error_of_the_activity(stage: Stage) -> None:
    async with stage.engine(flaky, middleware=[Refusing(1)]) as engine, engine.worker():
        assert await (await engine.start(flaky())).result() == 1
        assert seen == [1, 2]


class Forgiving(Middleware):
    """Sees errors, and gives a result in their place."""

    async def _forgive(self, call: Invocation, next: Next) -> Any:
        try:
            return await next(call)
        except ValueError as error:
            seen.append((call.kind, str(error)))
            return 0

    workflow = step = activity = _forgive


async def fails(value: int) -> int:
    raise ValueError("step")


def fails_in_thread(value: int) -> int:
    raise ValueError("thread")


@activity("middleware.fails.v1")
async def fails_as_activity() -> int:
    raise ValueError("activity")


@workflow("middleware.failing.v1")
async def failing(ctx: Context) -> int:
    await ctx.step(fails, 1)
    await ctx.step(fails_in_thread, 1)
    await ctx.call(fails_as_activity())
    raise ValueError("workflow")


async def test_middleware_sees_errors_and_may_replace_them(stage: Stage) -> None:
    async with stage.engine(failing, fails_as_activity, middleware=[Forgiving()]) as engine, engine.worker():
        assert await (await engine.start(failing())).result() == 0
    assert seen == [("step", "step"), ("step", "thread"), ("activity", "activity"), ("workflow", "workflow")]


@workflow("middleware.misfit.v1")
async def misfit(ctx: Context, in_a_thread: bool) -> None:
    function: Any = in_thread if in_a_thread else on_loop
    await ctx.step(function, 1, 2, 3)


@pytest.mark.parametrize("layer", [Noting("a"), NotingBlocking("a")], ids=["async", "blocking"])
async def test_a_call_that_does_not_fit_the_function_is_not_retried(on_disk: Stage, layer: Middleware) -> None:
    async with on_disk.engine(misfit, middleware=[layer]) as engine, engine.worker():
        for in_a_thread in (True, False):
            run = await engine.start(misfit(in_a_thread))
            with pytest.raises(RunFailed, match="positional argument"):
                await run.result()
            [record] = await run.history()
            assert record.attempts == 1


class Broken(Middleware):
    async def workflow(self, call: Invocation, next: Next, /) -> Any:
        raise RuntimeError("no middleware")


async def test_an_error_around_a_workflow_fails_the_workflow(stage: Stage) -> None:
    async with stage.engine(one_step, middleware=[Broken()]) as engine, engine.worker():
        with pytest.raises(RunFailed, match="no middleware"):
            await (await engine.start(one_step(1))).result()


# Time


released = threading.Event()


def blocks(value: int) -> int:
    assert released.wait(60)
    return value


async def never(value: int) -> int:
    await asyncio.Event().wait()
    return value


@workflow("middleware.slow.v1")
async def slow(ctx: Context, in_a_thread: bool) -> str:
    function: Any = blocks if in_a_thread else never
    try:
        await ctx.options(timeout="50ms", retry=1).step(function, 1)
    except StepTimeout as error:
        return str(error)
    return "in time"


@pytest.mark.parametrize("layers", [[Noting("a")], [NotingBlocking("a")]], ids=["async", "blocking"])
async def test_a_step_in_middleware_times_out(on_disk: Stage, layers: list[Middleware]) -> None:
    released.clear()
    try:
        async with on_disk.engine(slow, middleware=layers) as engine, engine.worker():
            for in_a_thread in (True, False):
                assert "longer than its timeout of 0.05 s" in await (await engine.start(slow(in_a_thread))).result()
    finally:
        released.set()


@activity("middleware.asked_to_stop.v1")
def asked_to_stop() -> str:
    info: Any = activity_info()
    seen.append("begun")
    while not info._by.stop_asked:
        threading.Event().wait(0.01)
    # It asks for the first time after it was cancelled.
    return "stopped" if info.is_cancelled() else "not asked"


async def test_a_def_activity_gets_the_time_to_stop_by_itself(on_disk: Stage) -> None:
    async with on_disk.engine(asked_to_stop, middleware=[Noting("a")]) as engine, engine.worker(grace="1h"):
        run = await engine.start(asked_to_stop())
        await eventually(lambda: "begun" in seen)
        await run.cancel()
        with pytest.raises(RunCancelled) as caught:
            await run.result()
        assert caught.value.partial == "stopped"


# Other kinds


@workflow("middleware.process.v1")
async def in_process(ctx: Context) -> int:
    return await ctx.options(process=True).step(add, 1, 2) + await ctx.call(add_as_activity(3, 4))


add_as_activity: Activity[[int, int], int] = activity("middleware.add.v1", process=True)(add)


class Adding(Middleware):
    def step(self, call: Invocation, next: Next, /) -> Any:
        return next(call.with_arguments(call.args[0] + 10, call.args[1]))

    async def activity(self, call: Invocation, next: Next, /) -> Any:
        return await next(call.with_arguments(**{**call.kwargs, "left": 100})) + 1000


async def test_a_function_in_a_process_is_surrounded(on_disk: Stage) -> None:
    engine = on_disk.engine(in_process, add_as_activity, middleware=[Adding()])
    async with engine.worker(step_processes=1):
        assert await (await engine.start(in_process())).result("60s") == 13 + 1104


tokens: list[str] = []


@activity("middleware.pending.v1")
async def pending() -> int:
    tokens.append(activity_info().token)
    return Pending


async def test_an_activity_that_is_completed_from_outside_passes_through(stage: Stage) -> None:
    async with stage.engine(pending, middleware=[Noting("a")]) as engine, engine.worker():
        run = await engine.start(pending())
        await until(run, Status.WAITING)
        await engine.runs.complete(tokens.pop(), 5)
        assert await run.result() == 5


def transaction_in_thread(connection: Any, value: int) -> int:
    return value


@workflow("middleware.transaction.v1")
async def def_transaction(ctx: Context) -> int:
    return await ctx.transaction(transaction_in_thread, 1)


async def test_a_def_transaction_is_surrounded(on_disk: Stage) -> None:
    for layers in ([ChangingSteps()], [ChangingBlocking()], [ChangingSteps(), NotingBlocking("a")]):
        async with on_disk.engine(def_transaction, middleware=layers) as engine, engine.worker():
            assert await (await engine.start(def_transaction())).result() == 202


# Histories


@workflow("middleware.parts.v1")
async def parts(ctx: Context) -> list[int]:
    found = [await ctx.step(on_loop, 1), await ctx.step(in_thread, 2)]
    await ctx.receive("go")
    return [*found, *await asyncio.gather(ctx.step(on_loop, 3), ctx.step(in_thread, 4))]


async def test_adding_and_removing_middleware_changes_no_history(on_disk: Stage) -> None:
    histories = []
    for before, after in (
        ([], []),
        ([], [Noting("a")]),
        ([Noting("a"), NotingBlocking("b")], []),
        ([Noting("a")],) * 2,
    ):
        async with on_disk.engine(parts, middleware=before) as engine:
            run = await engine.start(parts())
            async with engine.worker():
                await until(run, Status.WAITING)
        async with on_disk.engine(parts, middleware=after) as engine:
            assert (await engine.check()).ok
            run = await engine.get(run.id, parts)
            await run.send("go")
            async with engine.worker():
                assert await run.result() == [1, 2, 3, 4]
            histories.append({(one.kind, one.location, one.payload, one.digest) for one in await run.history()})
    assert histories[1:] == histories[:-1]


@workflow("middleware.branching.v1")
async def branching(ctx: Context) -> int:
    if tenant.get() == "acme":
        await ctx.step(on_loop, 1)
    await ctx.receive("go")
    return 1


async def test_a_replay_without_a_worker_has_the_middleware(on_disk: Stage) -> None:
    async with on_disk.engine(branching, middleware=[Scoping()]) as engine:
        run = await engine.start(branching(), headers={"tenant": "acme"})
        async with engine.worker():
            await until(run, Status.WAITING)
        assert (await engine.check()).ok
        assert await (await run.fork(from_step="on_loop")).status() is Status.PENDING
    async with on_disk.engine(branching) as engine:
        assert not (await engine.check()).ok


# Options


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (Noting("a"), r"middleware=.*: give a list, such as \[Tracing\(\)\]"),
        ([Noting], r"middleware has .*: give Noting\(\), an instance"),
        ([print], "middleware has .*: give an instance of a subclass of Middleware"),
        ("abc", "middleware"),
    ],
)
def test_other_middleware_is_refused(on_disk: Stage, given: Any, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        on_disk.engine(one_step, middleware=given)


def test_the_blocking_engine_takes_middleware(on_disk: Stage) -> None:
    with blocking.Engine(on_disk.url, [one_step], middleware=[Noting("a")]) as engine, engine.worker():
        assert engine.start(one_step(1)).result() == 1
    assert seen[0] == "a> workflow"


@step
async def emits(value: int) -> int:
    step_info().emit("numbers", value)
    return value


class Emitting(Middleware):
    async def step(self, call: Invocation, next: Next, /) -> Any:
        step_info().emit("numbers", 0)
        return await next(call)


@workflow("middleware.emitting.v1")
async def emitting(ctx: Context) -> None:
    await ctx.step(emits, 1)


async def test_middleware_may_use_the_info_of_its_step(stage: Stage) -> None:
    async with stage.engine(emitting, middleware=[Emitting()]) as engine, engine.worker():
        run = await engine.start(emitting())
        await run.result()
        assert [item.value async for item in run.stream("numbers")] == [0, 1]
