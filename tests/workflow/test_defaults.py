"""Defaults of parameters are part of a run's input from its start."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from msgspec import structs

from perdure import Call, Context, Cron, Limit, RunExists, Singleton, Status, activity, workflow
from perdure.core.codec.codec import Codec
from perdure.testing import Environment
from tests.stage import Stage, until

MISSING: Any = object()


@dataclass
class Basket:
    items: list[str] = field(default_factory=list)


@workflow("defaults.collect.v1")
async def collect(ctx: Context, items: list[int] = [], *, basket: Basket = Basket()) -> list[int]:  # noqa: B006, B008 # the default that is tested
    items.append(1)
    basket.items.append("x")
    await ctx.sleep("1h")
    return [*items, len(basket.items)]


@activity("defaults.gather.v1")
def gather(items: list[int] = []) -> list[int]:  # noqa: B006 # the default that is tested
    items.append(1)
    return items


@workflow("defaults.parent.v1")
async def parent(ctx: Context) -> list[list[int]]:
    return [await ctx.call(gather()), await ctx.call(gather()), await ctx.call(Call.named("defaults.gather.v1"))]


@workflow("defaults.sentinel.v1")
async def sentinel(ctx: Context, n: int = MISSING, m: int = None, *, t: Any = ()) -> list[bool]:  # type: ignore[assignment]  # noqa: RUF013 # the default that is tested
    return [n is MISSING, m is None, t == ()]


@workflow("defaults.changed.v1")
async def before(ctx: Context, rate: int = 7) -> int:
    await ctx.sleep("1h")
    return rate


@workflow("defaults.changed.v1")
async def after(ctx: Context, rate: int = 9) -> int:
    await ctx.sleep("1h")
    return rate


async def test_a_mutable_default_does_not_leak_into_a_replay() -> None:
    async with Environment([collect]) as env:
        run = await env.start(collect())
        await env.settle()
        assert (await run.info()).input == '{"items":[],"basket":{"items":[]}}'
        await env.restart()
        await env.advance("1h")
        assert await run.result() == [1, 1]


async def test_a_mutable_default_does_not_leak_into_a_run_that_was_started_without_it() -> None:
    async with Environment([collect]) as env:
        for id in ("first", "second"):
            # As plain SQL, or an older client, starts it.
            run = await env.engine.start(Call.named("defaults.collect.v1"), id=id)
            await env.settle()
            await env.restart()
            await env.advance("1h")
            assert await run.result() == [1, 1]


async def test_defaults_of_activities_are_their_own(stage: Stage) -> None:
    engine = stage.engine(parent, gather)
    async with engine.worker():
        assert await (await engine.start(parent())).result("20s") == [[1], [1], [1]]
        run = await engine.start(gather())
        assert await run.result("20s") == [1]
        assert (await run.info()).input == '{"items":[]}'


async def test_a_default_that_changes_does_not_change_runs_that_were_started_before(on_disk: Stage) -> None:
    stage = on_disk
    engine = stage.engine(before)
    async with engine.worker():
        run = await engine.start(before())
        await until(run, Status.WAITING)
    changed = stage.engine(after)
    async with changed.worker():
        await run.wake("0s")
        assert await run.result("20s") == 7


async def test_a_default_that_cannot_be_stored_is_left_to_the_function(stage: Stage) -> None:
    engine = stage.engine(sentinel)
    async with engine.worker():
        run = await engine.start(sentinel())
        assert await run.result("20s") == [True, True, True]
        assert (await run.info()).input == "{}"


async def test_a_start_is_the_same_with_and_without_what_is_the_default_anyway(stage: Stage) -> None:
    engine = stage.engine(before)
    first = await engine.start(before(), id="one")
    assert (await engine.start(before(7), id="one")).id == first.id
    with pytest.raises(RunExists):
        await engine.start(before(8), id="one")


async def test_a_schedule_keeps_the_defaults_of_its_creation(stage: Stage) -> None:
    engine = stage.engine(before)
    created = await engine.schedules.create("hourly", before(), Cron("0 * * * *"))
    assert created.input == '{"rate":7}'
    assert stage.store is not None
    old = structs.replace(created, id="older", input="{}")
    await stage.store.save_schedule(old, 0, "w", "schedule_created", "test")
    assert (await engine.schedules.create("older", before(), Cron("0 * * * *"))).id == "older"


def test_positional_arguments_get_the_defaults_of_the_rest() -> None:
    decode = collect.signature.decode
    first, second = (decode("[[5]]", Codec(), "input") for _ in range(2))
    assert first == {"items": [5], "basket": Basket()}
    assert first["basket"] is not second["basket"]


def test_keys_are_told_the_defaults_and_take_what_they_need() -> None:
    by = Singleton(by=lambda rate: f"at {rate}")
    single = before().options(singleton=by).place(0, None, None, 0)
    assert "at 7" in single.options
    limited = (
        collect()
        .options(limit=Limit("x", key=lambda items: f"{len(items)} items", concurrency=1))
        .place(0, None, None, 0)
    )
    assert "0 items" in limited.options


def test_defaults_are_not_part_of_the_digest_of_a_call() -> None:
    # Of runs that were recorded before defaults were part of the input.
    assert before().digest(Codec()) == Codec().digest({})
