"""A step, a child, an undo, a message gets what it was given at the call, and each attempt its own."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure import Break, Channel, Context, Continue, Retry, activity, step, workflow
from perdure.machine import StateMachine
from perdure.testing import Environment
from tests.stage import Stage

Number = dict[str, int]

kept: list[int] = []
seen: list[Any] = []


def append(items: list[int]) -> None:
    items.append(9)


async def see(given: Number) -> int:
    return given["i"]


def see_in_thread(*, given: Number) -> int:
    return given["i"]


def remember(given: Number) -> None:
    seen.append(given["i"])


@step(retry=Retry(attempts=3, initial=0.001))
def change_and_fail(items: list[int]) -> int:
    items.append(1)
    if len(seen) < 2:
        seen.append(list(items))
        raise ValueError("again")
    return len(items)


def keep() -> list[int]:
    kept.append(1)
    return kept


def make() -> list[int]:
    return [1]


def unmake(items: list[int]) -> None:
    seen.append(items)


@activity("given.see.v1")
async def see_elsewhere(given: Number) -> int:
    return given["i"]


@workflow("given.child.v1")
async def child(ctx: Context, given: Number) -> int:
    return given["i"]


@workflow("given.alias.v1")
async def alias(ctx: Context) -> int:
    items = [1]
    await ctx.step(append, items)
    await ctx.sleep("1h")
    return len(items)


@workflow("given.fan.v1")
async def fan(ctx: Context) -> list[list[int]]:
    given: Number = {}
    steps, threads, children, activities, calls = [], [], [], [], []
    for given["i"] in range(3):
        steps.append(ctx.step(see, given))
        threads.append(ctx.step(see_in_thread, given=given))
        children.append(ctx.call(child(given)))
        activities.append(ctx.spawn(see_elsewhere(given)))
        calls.append(child(given))
    mapped = ctx.map(see, _counted(), limit=1)
    later = [ctx.call(call) for call in calls]
    return [
        await asyncio.gather(*steps),
        await asyncio.gather(*threads),
        await asyncio.gather(*children),
        [await one for one in activities],
        await asyncio.gather(*later),
        await mapped,
    ]


def _counted() -> Any:
    given: Number = {}
    for given["i"] in range(3):
        yield given


@pytest.fixture(autouse=True)
def _forget() -> None:
    kept.clear()
    seen.clear()


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_step_that_changes_its_argument_changes_its_own(restarted: bool) -> None:
    async with Environment([alias]) as env:
        run = await env.start(alias())
        await env.settle()
        if restarted:
            await env.restart()
        await env.advance("1h")
        assert await run.result() == 1


async def test_what_is_reused_in_a_fan_out_reaches_each_as_it_was_at_the_call(stage: Stage) -> None:
    engine = stage.engine(fan, child, see_elsewhere)
    async with engine.worker():
        assert await (await engine.start(fan())).result("20s") == [[0, 1, 2]] * 6


async def test_an_attempt_does_not_see_what_the_one_before_it_changed(stage: Stage) -> None:
    @workflow("given.retried.v1")
    async def retried(ctx: Context) -> int:
        items: list[int] = []
        trying = ctx.step(change_and_fail, items)
        items.append(5)
        return await trying

    engine = stage.engine(retried)
    async with engine.worker():
        assert await (await engine.start(retried())).result("20s") == 1
        assert seen == [[1], [1]]


async def test_the_workflow_does_not_share_a_result_with_its_step(stage: Stage) -> None:
    @workflow("given.kept.v1")
    async def keeping(ctx: Context) -> list[list[int]]:
        first = await ctx.step(keep)
        first.append(7)
        return [first, await ctx.step(keep)]

    engine = stage.engine(keeping)
    async with engine.worker():
        assert await (await engine.start(keeping())).result("20s") == [[1, 7], [1, 1]]
        assert kept == [1, 1]


async def test_an_undo_gets_what_the_step_returned(stage: Stage) -> None:
    @workflow("given.undone.v1")
    async def undone(ctx: Context) -> None:
        async with ctx.saga():
            made = await ctx.options(undo=unmake).step(make)
            made.append(2)
            other = {"i": 1}
            ctx.undo(remember, other)
            other["i"] = 2
            raise ValueError("no")

    engine = stage.engine(undone)
    async with engine.worker():
        run = await engine.start(undone())
        with pytest.raises(Exception, match="no"):
            await run.result("20s")
    assert seen == [1, [1]]


async def test_a_loop_does_not_change_the_state_that_it_was_given(stage: Stage) -> None:
    @workflow("given.loop.v1")
    async def looping(ctx: Context) -> list[Any]:
        start: list[int] = []
        kept_outside: list[list[int]] = []

        async def body(ctx: Context, state: list[int]) -> Continue[list[int]] | Break[list[int]]:
            kept_outside.append(state)
            state.append(len(state))
            return Break(state) if len(state) == 3 else Continue(state)

        ended = await ctx.loop(start, body)
        return [start, ended, kept_outside]

    engine = stage.engine(looping)
    async with engine.worker():
        run = await engine.start(looping())
        assert await run.result("20s") == [[], [0, 1, 2], [[0], [0, 1], [0, 1, 2]]]


async def test_a_message_is_sent_as_it_was_when_it_was_given(stage: Stage) -> None:
    @workflow("given.inbox.v1")
    async def inbox(ctx: Context) -> list[int]:
        return [(await ctx.receive("n", Number))["i"] for _ in range(3)]

    engine = stage.engine(inbox)
    run = await engine.start(inbox())
    given: Number = {}
    sends = []
    for given["i"] in range(3):
        sends.append(run.send("n", given))
    for each in sends:
        await each
    async with engine.worker():
        assert await run.result("20s") == [0, 1, 2]


async def test_an_action_of_a_machine_carries_what_it_was_given() -> None:
    class Telling(StateMachine[int, list[int]], type="given.machine.v1"):
        messages = (Channel("go", int),)

        def on_start(self, input: int) -> Any:
            state = [1]
            told = self.publish("state", state)
            state.append(2)
            return told

        def on_message(self, name: str, value: int) -> Any:
            result = [3]
            ended = self.complete(result)
            result.append(4)
            return ended

    async with Environment([Telling]) as env:
        run = await env.start(Telling.definition()(1))
        await env.settle()
        assert await run.state("state") == [1]
        await run.send("go", 1)
        assert await run.result() == [3]
