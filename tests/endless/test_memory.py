"""A loop keeps nothing of the iterations that are behind it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from typing import Any

from perdure import Branch, Break, Context, Continue, Engine, workflow
from perdure.replay.execution import Execution
from tests.helpers import eventually, in_memory

ITERATIONS = 60


async def work(number: int) -> int:
    return number


@workflow("memory.sleeper.v1")
async def sleeper(ctx: Context, number: int) -> None:
    await ctx.sleep("1h")


@workflow("memory.child.v1")
async def child(ctx: Context, number: int) -> int:
    return number


async def count_down(ctx: Context, number: int) -> Continue[int] | Break[int]:
    await ctx.step(work, number)
    return Continue(number - 1) if number else Break(number)


async def numbers(ctx: Context, first: int) -> AsyncGenerator[int]:
    while True:
        yield await ctx.step(work, first)
        first += 1


async def everything(ctx: Context, number: int) -> Continue[int] | Break[int]:
    async with asyncio.timeout(3600):
        await ctx.step(work, number)
    branches: dict[str, Branch[Any]] = {"short": ctx.step(work, number), "long": ctx.sleep("1h")}
    await ctx.race(branches)
    await ctx.join({"one": ctx.step(work, 1), "two": ctx.call(child(number))})
    await ctx.loop(2, count_down, name="inner", commit_every=2)
    await ctx.map(work, [1, 2, 3], limit=2)
    async for one in numbers(ctx, number):
        if one > number:
            break
    for forsaken in (ctx.receive("never"), ctx.call(sleeper(number))):
        try:
            await asyncio.wait_for(forsaken, 0.001)
        except TimeoutError:
            continue
    ctx.publish("number", number)
    if number == ITERATIONS:
        await ctx.receive("go on")
    return Continue(number + 1) if number < ITERATIONS else Break(number)


@workflow("memory.everything.v1")
async def trying_everything(ctx: Context) -> int:
    return await ctx.loop(0, everything, name="all", commit_every=5)


def containers(thing: Any, path: str, depth: int, seen: set[int]) -> Iterator[tuple[str, int]]:
    """The sizes of what an object holds, by where it holds it."""
    slots = [name for kind in type(thing).__mro__ for name in vars(kind).get("__slots__", ())]
    for name in [*getattr(thing, "__dict__", {}), *slots]:
        held = getattr(thing, name, None)
        if id(held) in seen:
            continue
        seen.add(id(held))
        if isinstance(held, dict | list | set):
            yield f"{path}.{name}", len(held)
        elif depth and type(held).__module__.startswith("perdure.replay"):
            yield from containers(held, f"{path}.{name}", depth - 1, seen)


async def test_a_loop_that_does_everything_keeps_nothing_of_what_is_behind_it() -> None:
    async with Engine("sqlite://", [trying_everything, sleeper, child]) as engine, engine.worker():
        run = await engine.start(trying_everything())

        async def at_the_end() -> bool:
            return await run.state("number", int, default=0) == ITERATIONS

        await eventually(at_the_end, saying="the loop being in its last iteration")
        [execution] = [thing for thing in in_memory(Execution) if thing.run_id == run.id]
        sizes = dict(containers(execution, "execution", 3, {id(execution)}))
        assert sizes["execution._open"] == 0
        assert {path: size for path, size in sizes.items() if size >= ITERATIONS} == {}
        await run.send("go on")
        assert await run.result("20s") == ITERATIONS
