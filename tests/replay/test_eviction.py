"""An evicted run leaves no trace: nothing recorded, nothing dispatched, nothing printed, whatever its code does."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import inspect
import logging
import sys
import threading
import warnings
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import asynccontextmanager, suppress
from types import SimpleNamespace
from typing import Any

import pytest

from perdure import Context
from perdure.errors import Evicted
from perdure.replay.run_loop import _end_task
from perdure.workflow import scopes
from tests.replay.driver import Driver, named

Flow = Callable[[Context], Any]


class Silence:
    """Everything that Python would have printed or warned of."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def unraisable(self, event: Any) -> None:
        self.heard.append(f"unraisable: {event.exc_value!r} in {event.object!r}")

    def warning(self, message: Any, *_: Any, **__: Any) -> None:
        self.heard.append(f"warning: {message}")


@pytest.fixture
def silence(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> Iterator[Silence]:
    gc.collect()
    silence = Silence()
    caplog.set_level(logging.DEBUG)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        monkeypatch.setattr(sys, "unraisablehook", silence.unraisable)
        monkeypatch.setattr(warnings, "showwarning", silence.warning)
        yield silence
        gc.collect()
    printed = capsys.readouterr()
    assert silence.heard == []
    # Threads that an earlier test has left behind may still say something of their own.
    said = [record for record in caplog.get_records("call") if record.thread == threading.get_ident()]
    assert [record.message for record in said if record.name != "asyncio"] == []
    assert (printed.out, printed.err) == ("", "")


def let_go(flow: Flow, *, ends: bool = True, completing: tuple[str, ...] = ()) -> Driver:
    run = Driver(flow)
    for location in completing:
        run.complete(location)
    run.execution.fresh.clear()
    run.execution.dropped.clear()
    before = len(run.history)
    assert run.execution.evict() is ends
    assert run.execution.fresh == []
    assert run.execution.unsaved == []
    assert run.execution.dropped == []
    assert len(run.history) == before
    assert run.outcome is None
    return run


async def plain(ctx: Context) -> None:
    await named(ctx, "a")


async def durable_finally(ctx: Context) -> None:
    try:
        await named(ctx, "a")
    finally:
        await named(ctx, "undo")
        await asyncio.sleep(5)
        await ctx.receive("told", timeout=5)


async def catches_everything_once(ctx: Context) -> None:
    try:
        await named(ctx, "a")
    except BaseException:
        await named(ctx, "b")


async def catches_and_raises_another(ctx: Context) -> None:
    try:
        await named(ctx, "a")
    except BaseException as error:
        raise ValueError("instead") from error


async def logs_in_finally(ctx: Context) -> None:
    try:
        await named(ctx, "a")
    finally:
        ctx.log.error("this never happened")


async def in_a_group(ctx: Context) -> None:
    async with asyncio.TaskGroup() as group:
        for key in "abc":
            group.create_task(durable_finally(ctx), name=key)


async def in_a_gather(ctx: Context) -> None:
    await asyncio.gather(durable_finally(ctx), plain(ctx), return_exceptions=True)


async def shielded(ctx: Context) -> None:
    async with asyncio.timeout(30):
        await asyncio.shield(asyncio.create_task(durable_finally(ctx)))


async def waits_in_the_cleanup(ctx: Context) -> None:
    try:
        await named(ctx, "a")
    finally:
        await asyncio.wait_for(named(ctx, "undo"), 5)


async def starts_tasks_in_the_cleanup(ctx: Context) -> None:
    try:
        await named(ctx, "a")
    finally:
        await asyncio.gather(plain(ctx), plain(ctx))


async def starts_a_group_in_the_cleanup(ctx: Context) -> None:
    try:
        await named(ctx, "a")
    finally:
        async with asyncio.TaskGroup() as group:
            group.create_task(plain(ctx))


async def numbers(ctx: Context) -> AsyncIterator[int]:
    try:
        for number in range(3):
            yield number
            await named(ctx, f"n{number}")
    finally:
        await named(ctx, "closing")


async def inside_a_generator(ctx: Context) -> None:
    async for _ in numbers(ctx):
        pass


async def abandons_a_generator(ctx: Context) -> None:
    async for _ in numbers(ctx):
        break
    await named(ctx, "after")


async def abandons_a_generator_in_the_cleanup(ctx: Context) -> None:
    try:
        await named(ctx, "a")
    finally:
        async for _ in numbers(ctx):
            break


async def inside_a_context_manager(ctx: Context) -> None:
    @asynccontextmanager
    async def held() -> AsyncIterator[None]:
        await named(ctx, "enter")
        try:
            yield
        finally:
            await named(ctx, "leave")

    async with held():
        await named(ctx, "a")


async def holding_a_lock(ctx: Context) -> None:
    lock = asyncio.Lock()

    async def branch() -> None:
        async with lock:
            await named(ctx, "a")

    await asyncio.gather(branch(), branch())


async def waiting_at_a_queue(ctx: Context) -> None:
    queue = asyncio.Queue[int]()
    await asyncio.gather(queue.get(), queue.join(), named(ctx, "a"))


async def a_failed_branch_that_was_not_looked_at(ctx: Context) -> None:
    async def bad() -> None:
        raise ValueError("unseen")

    task = asyncio.create_task(bad())
    await named(ctx, "a")
    await task


async def ends_by_itself(ctx: Context) -> None:
    with suppress(BaseException):
        await named(ctx, "a")


QUIET = [
    plain, durable_finally, catches_everything_once, catches_and_raises_another, logs_in_finally, in_a_group,
    in_a_gather,
    shielded, waits_in_the_cleanup, starts_tasks_in_the_cleanup, starts_a_group_in_the_cleanup, inside_a_generator,
    abandons_a_generator, abandons_a_generator_in_the_cleanup, holding_a_lock, waiting_at_a_queue,
    a_failed_branch_that_was_not_looked_at, ends_by_itself,
]  # fmt: skip


@pytest.mark.parametrize("flow", QUIET, ids=lambda flow: flow.__name__)
def test_letting_go_is_silent(flow: Flow, silence: Silence) -> None:
    let_go(flow)
    gc.collect()


def test_letting_go_inside_a_context_manager_is_silent(silence: Silence) -> None:
    let_go(inside_a_context_manager, completing=("enter",))
    gc.collect()


@pytest.mark.parametrize("flow", QUIET, ids=lambda flow: flow.__name__)
def test_letting_go_inside_a_running_loop_leaves_nothing_to_that_loop(flow: Flow, silence: Silence) -> None:
    async def main() -> None:
        asyncio.get_running_loop().call_soon(let_go, flow)
        await asyncio.sleep(0)
        gc.collect()
        await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())


async def never_gives_up(ctx: Context) -> None:
    while True:
        try:
            await named(ctx, "a")
        except BaseException:
            continue


async def never_gives_up_in_a_generator(ctx: Context) -> None:
    async def stubborn() -> AsyncIterator[int]:
        yield 1
        await never_gives_up(ctx)

    async for _ in stubborn():
        pass


@pytest.mark.parametrize("flow", [never_gives_up, never_gives_up_in_a_generator], ids=lambda flow: flow.__name__)
def test_code_that_will_not_end_is_left_alone_in_silence(flow: Flow, silence: Silence) -> None:
    let_go(flow, ends=False)
    gc.collect()


def test_code_that_catches_everything_is_not_called_for_ever() -> None:
    calls = 0

    async def flow(ctx: Context) -> None:
        nonlocal calls
        while True:
            calls += 1
            try:
                await named(ctx, "a")
            except BaseException:
                continue

    let_go(flow, ends=False)
    assert calls < 100


def test_a_generator_that_cleanup_code_begins_is_ended_too() -> None:
    trace: list[str] = []

    async def numbers() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            trace.append("closed")

    begun: list[AsyncIterator[int]] = []

    async def flow(ctx: Context) -> None:
        try:
            await named(ctx, "a")
        finally:
            begun.append(numbers())
            await anext(begun[0])

    let_go(flow)
    assert trace == ["closed"]


def test_letting_go_twice_is_letting_go_once() -> None:
    run = let_go(durable_finally)
    assert run.execution.evict()


def test_a_run_that_was_let_go_can_be_taken_up_again() -> None:
    run = Driver(durable_finally)
    assert run.execution.evict()
    again = run.again()
    again.complete("a")
    assert again.open == ["undo"]
    assert again.execution.evict()


def test_the_end_of_a_run_is_silent_about_what_was_left_over(silence: Silence) -> None:
    async def flow(ctx: Context) -> str:
        for each in (durable_finally, inside_a_generator, in_a_group):
            asyncio.create_task(each(ctx))  # noqa: RUF006 - forgetting it is the point
        await named(ctx, "main")
        return "done"

    run = Driver(flow)
    run.complete("main")
    assert run.result == "done"
    assert run.open == []


variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")


def test_cleanup_code_does_not_touch_the_workers_context() -> None:
    async def flow(ctx: Context) -> None:
        try:
            await named(ctx, "a")
        finally:
            variable.set("from a run")

    token = variable.set("the worker's")
    try:
        let_go(flow)
        assert variable.get() == "the worker's"
    finally:
        variable.reset(token)


async def test_what_is_shielded_is_closed_if_the_run_is_let_go_of_before_it_has_begun() -> None:
    async def undo() -> None:
        """Never begun."""

    wanted = undo()
    part = scopes.shielded(wanted)
    part.send(None)
    with pytest.raises(Evicted):
        part.throw(Evicted())
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    assert inspect.getcoroutinestate(wanted) == inspect.CORO_CLOSED


def test_code_that_does_not_end_is_never_collected() -> None:
    class Forever:
        def __await__(self) -> Generator[None, None, None]:
            while True:
                yield

    async def stubborn() -> None:
        while True:
            with suppress(BaseException):
                await Forever()

    coroutine = stubborn()
    coroutine.send(None)
    task = SimpleNamespace(get_coro=lambda: coroutine, done=lambda: False)
    before = sys.getrefcount(coroutine)
    assert not _end_task(task)
    assert sys.getrefcount(coroutine) == before + 1
