"""User code that raises what is no `Exception`: its run fails, wherever the code runs, and nothing else does."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure import Context, Retry, RunFailed, activity, workflow
from perdure.admin import Event
from tests.helpers import eventually
from tests.stage import Stage
from tests.workflow.raising import ERRORS, in_process


async def in_loop(name: str) -> None:
    await asyncio.sleep(0)
    raise ERRORS[name]("from user code")


async def in_loop_at_once(name: str) -> None:
    raise ERRORS[name]("from user code")


def in_thread(name: str) -> None:
    raise ERRORS[name]("from user code")


def awaited_later(name: str) -> Any:
    return in_loop(name)


async def nothing() -> None:
    return None


@activity("raise.loop.v1", retry=Retry.never())
async def activity_in_loop(name: str) -> None:
    await in_loop(name)


@activity("raise.thread.v1", retry=Retry.never())
def activity_in_thread(name: str) -> None:
    in_thread(name)


async def transaction_in_loop(connection: Any, name: str) -> None:
    raise ERRORS[name]("from user code")


def transaction_in_thread(connection: Any, name: str) -> None:
    raise ERRORS[name]("from user code")


@workflow("raise.v1")
async def raising(ctx: Context, place: str, name: str) -> None:
    patient = ctx.options(retry=Retry.never())
    match place:
        case "step":
            await patient.step(in_loop, name)
        case "step at once":
            await patient.step(in_loop_at_once, name)
        case "step with a timeout":
            await ctx.options(retry=Retry.never(), timeout="30s").step(in_loop, name)
        case "thread":
            await patient.step(in_thread, name)
        case "awaitable of a thread":
            await patient.step(awaited_later, name)
        case "process":
            await patient.step(in_process, name)
        case "activity":
            await ctx.call(activity_in_loop(name))
        case "activity in a thread":
            await ctx.call(activity_in_thread(name))
        case "transaction":
            await patient.transaction(transaction_in_loop, name)
        case "transaction in a thread":
            await patient.transaction(transaction_in_thread, name)
        case "undo":
            await ctx.options(undo=lambda _: in_thread(name)).step(nothing)
            raise ValueError("to be undone")
        case "async undo":
            await ctx.step(nothing)
            ctx.undo(in_loop, name)
            raise ValueError("to be undone")
        case "workflow":
            await ctx.sleep("1ms")
            raise ERRORS[name]("from user code")
        case "task of the workflow":
            await asyncio.create_task(in_loop(name))
        case _:
            raise AssertionError(place)


@workflow("raise.neighbour.v1")
async def neighbour(ctx: Context) -> str:
    return await ctx.receive("word", str)


PLACES = [
    "step",
    "step at once",
    "step with a timeout",
    "thread",
    "awaitable of a thread",
    "process",
    "activity",
    "activity in a thread",
    "transaction",
    "transaction in a thread",
    "undo",
    "async undo",
    "workflow",
    "task of the workflow",
]


def is_as_expected(place: str, end: object) -> bool:
    """True if a run failed by what the code raised, or by what was undone then."""
    said = "to be undone" if "undo" in place else "from user code"
    return isinstance(end, RunFailed) and (said in str(end) or "cancelled" in str(end))


async def test_a_run_whose_code_raises_what_is_no_exception_fails_alone(stage: Stage) -> None:
    engine = stage.engine(raising, neighbour, activity_in_loop, activity_in_thread)
    async with engine.worker(step_processes=1, retry=Retry(attempts=2, initial="1ms")):
        beside = await engine.start(neighbour())
        places = [place for place in PLACES if place != "transaction in a thread" or stage.url.startswith("sqlite")]
        runs = {(place, name): await engine.start(raising(place, name)) for place in places for name in ERRORS}
        ends = await asyncio.gather(*(run.result("30s") for run in runs.values()), return_exceptions=True)
        unlike = {place: end for place, end in zip(runs, ends, strict=True) if not is_as_expected(place[0], end)}
        assert unlike == {}
        await beside.send("word", "unharmed")
        assert await beside.result("60s") == "unharmed"


@pytest.mark.parametrize("name", ERRORS)
@pytest.mark.parametrize("blocks", [False, True], ids=["async", "thread"])
async def test_a_hook_that_raises_what_is_no_exception_is_called_again(
    on_disk: Stage, name: str, *, blocks: bool
) -> None:
    told: list[str] = []

    def count(event: Event) -> None:
        told.append(event.run_id)
        raise ERRORS[name]("from user code")

    async def count_async(event: Event) -> None:
        count(event)

    engine = on_disk.engine(neighbour, on_event=count if blocks else count_async)
    async with engine.worker():
        for number in range(3):
            run = await engine.start(neighbour(), id=f"r{number}")
            await run.send("word", "heard")
            await run.result("60s")
            await eventually(lambda: {*told} >= {f"r{one}" for one in range(number + 1)})  # noqa: B023 - awaited here
