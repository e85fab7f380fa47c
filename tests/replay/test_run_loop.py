"""The loop of a run: what it does with errors, threads and generators."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

from perdure import Context
from perdure.replay.operations import StepOperation
from perdure.replay.run_loop import DrainContext
from tests.replay.driver import Driver, named


def test_an_error_in_a_callback_is_logged_and_the_run_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    async def flow(ctx: Context) -> Any:
        named_at: dict[str, int] = {}
        asyncio.get_running_loop().call_soon(lambda: 1 / 0)
        await named(ctx, "a")
        asyncio.get_running_loop().call_soon(lambda: named_at["missing"])
        return await named(ctx, "b")

    run = Driver(flow)
    run.complete("a")
    run.complete("b", "end")
    assert run.result == "end"
    assert "error in a callback of the workflow in run run-1" in caplog.text
    assert "KeyError: 'missing'" in caplog.text


def test_a_drain_leaves_the_thread_as_it_found_it() -> None:
    async def flow(ctx: Context) -> bool:
        inside = asyncio.get_running_loop()
        await named(ctx, "a")
        return asyncio.get_running_loop() is inside

    async def main() -> None:
        mine, hooks = asyncio.get_running_loop(), sys.get_asyncgen_hooks()
        run = Driver(flow)
        run.complete("a")
        assert run.result is True
        assert asyncio.get_running_loop() is mine
        assert sys.get_asyncgen_hooks() == hooks

    asyncio.run(main())
    run = Driver(flow)
    run.complete("a")
    with pytest.raises(RuntimeError):
        asyncio.get_running_loop()


def test_a_run_that_is_drained_in_a_context_that_was_left_holds_its_generators() -> None:
    trace: list[str] = []

    async def numbers() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            trace.append("closed")

    async def flow(ctx: Context) -> None:
        await named(ctx, "a")
        await anext(numbers())
        trace.append("dropped")
        await named(ctx, "b")

    run = Driver(flow)
    operation, now = run.operation("a"), run.execution.time
    assert isinstance(operation, StepOperation)
    with DrainContext() as left:
        pass
    run.execution.step_succeeded(operation, "1", 1, now, now, 1, left)
    assert trace == ["dropped"]
