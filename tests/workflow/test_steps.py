from __future__ import annotations

import asyncio
import contextvars
import datetime
import functools
import inspect
import threading
from collections.abc import Awaitable
from dataclasses import dataclass

import pytest

from perdure import Context, Retry, RunFailed, StepInfo, UsageError, step, step_info, workflow
from perdure.errors import DuplicateName, EncodeError, InvalidName
from tests.stage import Stage, until_recorded


@dataclass
class Point:
    x: int
    y: int


def flip(point: Point) -> Point:
    return Point(point.y, point.x)


async def halves(number: int) -> tuple[int, int]:
    return number // 2, number - number // 2


class Shop:
    def price(self, sku: str) -> int:
        return len(sku)

    def __call__(self, sku: str) -> str:
        return sku.upper()


async def test_a_sync_step_runs_in_a_thread_and_an_async_one_on_the_loop(stage: Stage) -> None:
    threads: dict[str, int] = {}

    def sync_step() -> None:
        threads["sync"] = threading.get_ident()

    async def async_step() -> None:
        threads["async"] = threading.get_ident()

    @workflow("step.where.v1")
    async def where(ctx: Context) -> None:
        await ctx.step(sync_step)
        await ctx.step(async_step)

    engine = stage.engine(where)
    async with engine.worker():
        await (await engine.start(where())).result("20s")
    assert threads["async"] == threading.get_ident()
    assert threads["sync"] != threading.get_ident()


async def test_the_workflow_sees_the_decoded_result_at_once_and_on_replay(stage: Stage) -> None:
    seen: list[object] = []

    async def untyped():  # type: ignore[no-untyped-def]  # noqa: ANN202 # users leave annotations out
        return [1, 2]

    @workflow("step.decoded.v1")
    async def decoded(ctx: Context) -> str:
        seen.append([await ctx.step(flip, Point(1, 2)), await ctx.step(halves, 7), await ctx.step(untyped)])
        return await ctx.receive("go", str)

    engine = stage.engine(decoded)
    run = await engine.start(decoded())
    async with engine.worker():
        await until_recorded(run, 3)
    await run.send("go", "on")
    async with engine.worker():
        assert await run.result("20s") == "on"
    assert seen == [[Point(2, 1), (3, 4), [1, 2]]] * 2


async def test_steps_are_named_after_what_is_called(stage: Stage) -> None:
    @workflow("step.names.v1")
    async def names(ctx: Context) -> None:
        shop = Shop()
        await ctx.step(flip, Point(1, 2))
        await ctx.step(flip, Point(3, 4))
        await ctx.step(shop.price, "socks")
        await ctx.step(shop, "socks")
        await ctx.step(functools.partial(halves, 4))
        await ctx.options(name="tenfold").step(lambda: 10)

    engine = stage.engine(names)
    async with engine.worker():
        run = await engine.start(names())
        await run.result("20s")
    locations = [record.location for record in await run.history()]
    assert locations == ["flip", "flip#2", "Shop.price", "Shop", "halves", "tenfold"]


async def test_a_lambda_needs_a_name(stage: Stage) -> None:
    @workflow("step.lambda.v1")
    async def nameless(ctx: Context) -> None:
        await ctx.step(lambda: 10)

    engine = stage.engine(nameless)
    async with engine.worker():
        with pytest.raises(RunFailed, match="lambda") as caught:
            await (await engine.start(nameless())).result("20s")
    assert isinstance(caught.value.__cause__, InvalidName)


async def test_two_functions_of_one_name_are_an_error(stage: Stage) -> None:
    def other() -> int:
        return 1

    @workflow("step.twins.v1")
    async def twins(ctx: Context) -> None:
        await ctx.options(name="same").step(other)
        await ctx.options(name="same").step(flip, Point(1, 2))

    engine = stage.engine(twins)
    async with engine.worker():
        with pytest.raises(RunFailed, match="'same'") as caught:
            await (await engine.start(twins())).result("20s")
    assert isinstance(caught.value.__cause__, DuplicateName)


async def test_a_step_knows_what_it_is(stage: Stage) -> None:
    seen: list[StepInfo] = []

    @step(retry=Retry.fixed("1ms", attempts=3), timeout="60s")
    def ask() -> None:
        seen.append(step_info())
        if len(seen) < 2:
            raise ConnectionError

    async def ask_again() -> None:
        seen.append(step_info())

    @workflow("step.info.v1")
    async def asking(ctx: Context) -> None:
        await ctx.step(ask)
        await ctx.step(ask_again)

    engine = stage.engine(asking)
    async with engine.worker():
        run = await engine.start(asking())
        await run.result("20s")
    assert [(info.run_id, info.location, info.attempt) for info in seen] == [
        (run.id, "ask", 1),
        (run.id, "ask", 2),
        (run.id, "ask_again", 1),
    ]
    assert seen[0].deadline is not None
    assert seen[0].deadline.tzinfo is datetime.UTC
    assert seen[2].deadline is None


async def test_a_step_sees_the_deadline_of_its_run(stage: Stage) -> None:
    async def ask() -> datetime.datetime | None:
        return step_info().deadline

    @workflow("step.deadline.v1")
    async def asking(ctx: Context) -> datetime.datetime | None:
        return await ctx.options(timeout="2d").step(ask)

    engine = stage.engine(asking)
    async with engine.worker():
        run = await engine.start(asking(), deadline="1d")
        due = await run.result("20s")
        assert due is not None
        assert round(due.timestamp() * 1e6) == (await run.info()).deadline


def test_outside_of_a_step_there_is_no_step_info() -> None:
    with pytest.raises(UsageError, match="outside of a step"):
        step_info()


def test_a_decorated_function_stays_the_plain_function_that_it_was() -> None:
    def plain(a: int) -> int:
        return a + 1

    decorated = step(retry=Retry.never(), timeout="1s")(plain)
    assert decorated is plain
    assert decorated(1) == 2
    assert not inspect.iscoroutinefunction(decorated)


async def test_a_sync_step_that_returns_an_awaitable_has_it_awaited(stage: Stage) -> None:
    def lazy(number: int) -> Awaitable[int]:
        async def later() -> int:
            await asyncio.sleep(0)
            return number * 2

        return later()

    @workflow("step.lazy.v1")
    async def awaiting(ctx: Context) -> int:
        return await ctx.step(lazy, 4)

    engine = stage.engine(awaiting)
    async with engine.worker():
        assert await (await engine.start(awaiting())).result("20s") == 8


async def test_a_step_that_raises_stop_iteration_fails_as_any_other(stage: Stage) -> None:
    @step(retry=Retry.never())
    def empty() -> int:
        return next(iter(()))

    @step(retry=Retry.never())
    async def empty_async() -> int:
        raise StopAsyncIteration

    @workflow("step.stop.v1")
    async def stopping(ctx: Context) -> list[str]:
        results = await asyncio.gather(ctx.step(empty), ctx.step(empty_async), return_exceptions=True)
        return [str(result) for result in results]

    engine = stage.engine(stopping)
    async with engine.worker():
        first, second = await (await engine.start(stopping())).result("20s")
    assert "StopIteration" in first
    assert "StopAsyncIteration" in second


async def test_a_result_that_cannot_be_stored_fails_the_step_without_a_second_attempt(stage: Stage) -> None:
    calls: list[int] = []

    async def bad() -> object:
        calls.append(1)
        return {"when": object()}

    @workflow("step.bad.v1")
    async def storing(ctx: Context) -> str:
        try:
            await ctx.step(bad)
        except EncodeError as error:
            return str(error)
        return "impossible"

    engine = stage.engine(storing)
    async with engine.worker():
        message = await (await engine.start(storing())).result("20s")
    assert "result of step 'bad'" in message
    assert "when" in message
    assert calls == [1]


async def test_a_thousand_parallel_steps_come_back_in_order(on_disk: Stage) -> None:
    async def double(number: int) -> int:
        return number * 2

    @workflow("step.wide.v1")
    async def wide(ctx: Context) -> list[int]:
        return await asyncio.gather(*(ctx.step(double, number) for number in range(1000)))

    engine = on_disk.engine(wide)
    async with engine.worker():
        assert await (await engine.start(wide())).result("60s") == [number * 2 for number in range(1000)]


async def test_steps_in_a_task_group_run_side_by_side(stage: Stage) -> None:
    both = asyncio.Barrier(2)

    async def meet(name: str) -> str:
        await both.wait()
        return name

    @workflow("step.group.v1")
    async def group(ctx: Context) -> list[str]:
        async with asyncio.TaskGroup() as tasks:
            one = tasks.create_task(ctx.step(meet, "one"))
            two = tasks.create_task(ctx.step(meet, "two"))
        return [one.result(), two.result()]

    engine = stage.engine(group)
    async with engine.worker():
        assert await (await engine.start(group())).result("20s") == ["one", "two"]


async def test_ephemeral_steps_leave_their_records_with_the_next_ordinary_one(stage: Stage) -> None:
    async def peek(number: int) -> int:
        return number

    async def act(number: int) -> int:
        return number

    @workflow("step.ephemeral.v1")
    async def quick(ctx: Context) -> int:
        total = 0
        for number in range(5):
            total += await ctx.options(ephemeral=True).step(peek, number)
        return await ctx.step(act, total)

    engine = stage.engine(quick)
    async with engine.worker():
        run = await engine.start(quick())
        assert await run.result("20s") == 10
    assert [r.location for r in await run.history()] == ["peek", "peek#2", "peek#3", "peek#4", "peek#5", "act"]


async def test_an_ordinary_step_begins_only_when_earlier_ephemeral_records_are_durable(stage: Stage) -> None:
    recorded: list[int] = []

    async def peek() -> int:
        return 1

    async def act(run_id: str) -> None:
        [(count,)] = await stage.rows("SELECT COUNT(*) FROM perdure_history WHERE run_id = ?", run_id)
        recorded.append(count)

    @workflow("step.careful.v1")
    async def careful(ctx: Context) -> None:
        await ctx.options(ephemeral=True).step(peek)
        await ctx.options(ephemeral=True).step(peek)
        await ctx.step(act, ctx.run_id)

    engine = stage.engine(careful)
    async with engine.worker():
        await (await engine.start(careful())).result("20s")
    assert recorded == [2]


async def test_a_step_begins_only_when_what_led_to_it_is_durable(stage: Stage) -> None:
    recorded: list[int] = []

    async def count(run_id: str) -> None:
        [(rows,)] = await stage.rows("SELECT COUNT(*) FROM perdure_history WHERE run_id = ?", run_id)
        recorded.append(rows)

    @workflow("step.durable.v1")
    async def counting(ctx: Context) -> None:
        await ctx.step(count, ctx.run_id)
        await ctx.sleep("1ms")
        await ctx.step(count, ctx.run_id)
        await ctx.receive("word")
        await ctx.step(count, ctx.run_id)

    engine = stage.engine(counting)
    async with engine.worker():
        run = await engine.start(counting())
        await until_recorded(run, 3)
        await run.send("word")
        await run.result("20s")
    assert recorded == [0, 2, 4]


async def test_context_variables_of_the_caller_do_not_leak_into_workflows(stage: Stage) -> None:
    marker = contextvars.ContextVar("marker", default="nothing")

    async def read() -> str:
        return marker.get()

    @workflow("step.context.v1")
    async def reading(ctx: Context) -> list[str]:
        before = marker.get()
        marker.set("mine")
        return [before, marker.get(), await ctx.step(read)]

    marker.set("theirs")
    engine = stage.engine(reading)
    async with engine.worker():
        for _ in range(2):
            assert await (await engine.start(reading())).result("20s") == ["nothing", "mine", "mine"]


async def test_time_randomness_and_ids_are_the_same_after_a_restart(stage: Stage) -> None:
    seen: list[tuple[object, ...]] = []

    async def nothing() -> None:
        return None

    @workflow("step.same.v1")
    async def same(ctx: Context) -> None:
        await ctx.step(nothing)
        seen.append((ctx.now(), ctx.random(), ctx.random.randint(1, 10**9), ctx.uuid(), ctx.run_id))
        await ctx.receive("go")

    engine = stage.engine(same)
    run = await engine.start(same())
    async with engine.worker():
        await until_recorded(run)
    await run.send("go")
    async with engine.worker():
        await run.result("20s")
    assert len(seen) == 2
    assert seen[0] == seen[1]


async def test_the_log_of_a_workflow_is_silent_on_replay(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    async def nothing() -> None:
        return None

    @workflow("step.log.v1")
    async def logging_workflow(ctx: Context) -> None:
        await ctx.step(nothing)
        ctx.log.warning("after the step")
        await ctx.receive("go")

    engine = stage.engine(logging_workflow)
    run = await engine.start(logging_workflow())
    async with engine.worker():
        await until_recorded(run)
    await run.send("go")
    async with engine.worker():
        await run.result("20s")
    lines = [record for record in caplog.records if record.message == "after the step"]
    assert len(lines) == 1
    assert lines[0].run_id == run.id  # type: ignore[attr-defined] # logging adds it
