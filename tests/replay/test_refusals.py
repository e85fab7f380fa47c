"""Workflow code that does I/O, spins or plays with the loop is told so at once."""

from __future__ import annotations

import asyncio
import inspect
import socket
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from perdure import Context
from perdure.core.model.run import Status
from perdure.errors import LoopStuck, NotInWorkflow, WorkflowError
from perdure.replay import run_loop as loop_module
from perdure.workflow.definition import Call
from tests.replay.driver import Driver, named


async def to_thread() -> None:
    await asyncio.to_thread(print, "x")


async def run_in_executor() -> None:
    await asyncio.get_running_loop().run_in_executor(None, print, "x")


async def open_connection() -> None:
    await asyncio.open_connection("localhost", 1)


async def open_unix_connection() -> None:
    await asyncio.open_unix_connection("/nowhere")


async def start_server() -> None:
    await asyncio.start_server(lambda _reader, _writer: None, "localhost", 0)


async def create_subprocess_exec() -> None:
    await asyncio.create_subprocess_exec("true")


async def create_subprocess_shell() -> None:
    await asyncio.create_subprocess_shell("true")


async def add_reader() -> None:
    asyncio.get_running_loop().add_reader(0, print)


async def add_signal_handler() -> None:
    asyncio.get_running_loop().add_signal_handler(2, print)


async def call_soon_threadsafe() -> None:
    asyncio.get_running_loop().call_soon_threadsafe(print)


async def getaddrinfo() -> None:
    await asyncio.get_running_loop().getaddrinfo("localhost", 1)


async def sock_connect() -> None:
    with socket.socket() as sock:
        await asyncio.get_running_loop().sock_connect(sock, ("localhost", 1))


async def run_until_complete() -> None:
    asyncio.get_running_loop().run_until_complete(asyncio.get_running_loop().create_future())


async def stop() -> None:
    asyncio.get_running_loop().stop()


REFUSED = [
    to_thread, run_in_executor, open_connection, open_unix_connection, start_server, create_subprocess_exec,
    create_subprocess_shell, add_reader, add_signal_handler, call_soon_threadsafe, getaddrinfo, sock_connect,
    run_until_complete, stop,
]  # fmt: skip


@pytest.mark.parametrize("attempt", REFUSED, ids=lambda attempt: attempt.__name__)
def test_io_is_refused_and_the_message_says_what_to_do(attempt: Callable[[], Awaitable[None]]) -> None:
    async def flow(ctx: Context) -> None:
        await attempt()

    run = Driver(flow)
    assert run.ended.status is Status.FAILED
    assert isinstance(run.error, NotInWorkflow)
    assert "ctx.step" in str(run.error)


def test_code_that_blocks_until_a_coroutine_ends_is_told_to_await_it() -> None:
    async def flow(ctx: Context) -> None:
        await run_until_complete()

    assert "`await` the coroutine" in str(Driver(flow).error)


@pytest.mark.parametrize(
    "runner", [asyncio.run, lambda coroutine: asyncio.Runner().run(coroutine)], ids=["run", "Runner"]
)
def test_another_event_loop_is_refused(runner: Callable[[Any], Any]) -> None:
    async def flow(ctx: Context) -> None:
        coroutine = asyncio.sleep(0)
        try:
            runner(coroutine)
        finally:
            given.append(coroutine)

    given: list[Coroutine[Any, Any, None]] = []
    run = Driver(flow)
    assert isinstance(run.error, NotInWorkflow)
    assert [inspect.getcoroutinestate(one) for one in given] == [inspect.CORO_CLOSED], "Python would warn of it"
    assert "a workflow runs in an event loop already" in str(run.error)
    assert run.error.__traceback__ is not None


def test_every_method_of_an_event_loop_is_either_ours_or_refused() -> None:
    inherited = [
        name
        for name, value in vars(asyncio.AbstractEventLoop).items()
        if callable(value) and not name.startswith("__") and name not in vars(loop_module.RunLoop)
    ]
    assert inherited == [], "asyncio would raise NotImplementedError for these, which says nothing to a user"


def test_a_run_that_spins_is_stopped_and_told_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_module, "STUCK_AFTER", 500)

    async def flow(ctx: Context) -> None:
        await named(ctx, "a")
        while True:  # noqa: ASYNC110 - the mistake that is meant
            await asyncio.sleep(0)

    run = Driver(flow)
    run.complete("a")
    assert isinstance(run.error, LoopStuck)
    assert "ctx.sleep" in str(run.error)
    assert run.open == []
    assert run.settled().ended.status is Status.FAILED


def test_a_run_that_asks_for_much_is_not_taken_to_be_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_module, "STUCK_AFTER", 50)

    async def branch(ctx: Context, number: int) -> None:
        await ctx.options(name="s").step(abs, number)

    async def flow(ctx: Context) -> None:
        await asyncio.gather(*(branch(ctx, number) for number in range(500)))

    run = Driver(flow)
    assert len(run.open) == 500
    assert run.execution.evict()


@pytest.mark.parametrize(
    "use",
    [
        lambda ctx: named(ctx, "b"),
        lambda ctx: ctx.sleep(1),
        lambda ctx: ctx.receive("x"),
        lambda ctx: ctx.call(Call.named("other.v1")),
        lambda ctx: ctx.random(),
        lambda ctx: ctx.uuid(),
    ],
    ids=["step", "sleep", "receive", "call", "random", "uuid"],
)
def test_a_context_is_of_no_use_outside_of_its_workflow(use: Callable[[Context], Any]) -> None:
    contexts: list[Context] = []

    async def flow(ctx: Context) -> Any:
        contexts.append(ctx)
        await named(ctx, "a")
        return [await named(ctx, "b"), ctx.random()]

    run = Driver(flow)
    for _ in range(2):
        with pytest.raises(WorkflowError, match="run 'run-1'.*outside of its workflow"):
            use(contexts[0])
    assert contexts[0].now() is not None
    assert run.open == ["a"]
    run.complete("a")
    run.complete("b", "undisturbed")
    assert run.settled().result[0] == "undisturbed"


@pytest.mark.parametrize(
    "text", ["asyncio.run() cannot be called from a running event loop", "attached to a different loop"]
)
def test_an_error_of_an_event_loop_in_a_step_stays_the_error_of_the_step(text: str) -> None:
    async def flow(ctx: Context) -> None:
        await named(ctx, "a")

    run = Driver(flow)
    run.fail("a", RuntimeError(text))
    assert type(run.error) is RuntimeError
    assert str(run.error) == text
