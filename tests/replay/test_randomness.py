"""Randomness in a workflow grows from the run's seed and nothing else."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure import Context
from tests.replay.driver import Driver, named


async def drawing(ctx: Context) -> Any:
    before = [ctx.random(), ctx.random.randint(1, 10**9), str(ctx.uuid()), ctx.random.choice("abcdef")]
    await named(ctx, "a")
    return [*before, ctx.random(), str(ctx.uuid())]


def drawn(**origin: Any) -> Any:
    run = Driver(drawing, **origin)
    run.complete("a")
    return run.settled().result


def test_the_same_run_draws_the_same() -> None:
    assert drawn() == drawn()


@pytest.mark.parametrize("other", [{"seed": "another"}, {"generation": 2}])
def test_another_seed_or_generation_draws_something_else(other: dict[str, Any]) -> None:
    first, second = drawn(), drawn(**other)
    assert all(mine != yours for mine, yours in zip(first[:3], second[:3], strict=True))


def test_the_runs_id_is_no_part_of_it_since_an_id_may_be_used_again() -> None:
    assert drawn(run_id="other") == drawn()


def test_uuids_are_of_version_four_and_differ() -> None:
    async def flow(ctx: Context) -> Any:
        made = [ctx.uuid() for _ in range(100)]
        return [len(set(made)), sorted({each.version for each in made})]

    assert Driver(flow).result == [100, [4]]


def test_parallel_branches_draw_in_their_order() -> None:
    async def branch(ctx: Context, key: str) -> float:
        await named(ctx, key)
        return ctx.random()

    async def flow(ctx: Context) -> Any:
        return await asyncio.gather(*(branch(ctx, key) for key in "abc"))

    run = Driver(flow)
    for key in "cab":
        run.complete(key)
    assert len(set(run.settled().result)) == 3


def test_contexts_with_options_share_one_source() -> None:
    async def shared(ctx: Context) -> Any:
        return [ctx.random(), ctx.options(timeout=1).random(), ctx.random()]

    async def plain(ctx: Context) -> Any:
        return [ctx.random(), ctx.random(), ctx.random()]

    assert Driver(shared).result == Driver(plain).result
