"""Sets of whole numbers have the same order in every process, and sums have none."""

import asyncio
from enum import IntEnum

from perdure import Context, workflow
from perdure.testing import Environment


class Level(IntEnum):
    LOW = 1
    HIGH = 2


async def ring(floor: int) -> str:
    return f"rang on {floor}"


async def count(floors: set[int]) -> int:
    return len(floors)


@workflow("samples.right.floors.v1")
async def ring_floors(ctx: Context, floors: set[int], seen: frozenset[str]) -> list[str]:
    rung: list[str] = []
    for floor in floors:
        rung.append(await ctx.step(ring, floor))
    for level in {1, 2, 3}:
        rung.append(await ctx.step(ring, level))
    tasks = {asyncio.create_task(_later(ctx, floor)) for floor in (7, 8)}
    done, _ = await asyncio.wait(tasks)
    rung += sorted(task.result() for task in done)
    total = sum({len(name) for name in seen}) + await ctx.step(count, floors)
    lengths = {len(name) for name in seen}
    rung += [str(length) for length in sorted(lengths)]
    return [*rung, str(total), str(Level.HIGH in {Level.LOW})]


async def _later(ctx: Context, floor: int) -> str:
    await ctx.sleep("1s")
    return await ctx.step(ring, floor)


WORKFLOWS = [ring_floors]


async def drive(env: Environment) -> object:
    run = await env.start(ring_floors({3, 1, 2}, frozenset({"ann", "bob"})))
    await env.advance("2s")
    return await run.result()
