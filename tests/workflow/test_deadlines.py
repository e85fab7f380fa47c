"""Nothing of a run begins once its deadline is past. On the virtual clock."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from perdure import Context, Retry, RunFailed, Status, step, workflow
from perdure.core.model.turn import Turn, TurnOutcome
from perdure.testing import Environment


def passing(env: Environment, seconds: int) -> None:
    """Time passes while a step has the floor."""
    env._clock.move_to(env._clock.now() + seconds * 1_000_000)


@contextmanager
def slow_commits(env: Environment, seconds: int) -> Iterator[None]:
    """Each commit of a record takes that long, and what is due meanwhile finds the run busy."""
    commit = env._store.commit

    async def slowly(turns: Sequence[Turn], actor: str) -> list[TurnOutcome]:
        verdicts = await commit(turns, actor)
        if any(turn.records for turn in turns):
            passing(env, seconds)
        return verdicts

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(env._store, "commit", slowly)
        yield


@workflow("late.child.v1")
async def child(ctx: Context) -> str:
    return await ctx.receive("word", str)


async def test_no_step_begins_past_the_deadline() -> None:
    ran: list[str] = []

    async def slow() -> None:
        ran.append("slow")

    async def after() -> None:
        ran.append("after")

    @workflow("late.steps.v1")
    async def stepping(ctx: Context) -> None:
        await ctx.step(slow)
        await ctx.step(after)

    async with Environment([stepping]) as env:
        with slow_commits(env, 20):
            run = await env.start(stepping(), deadline="10s")
            with pytest.raises(RunFailed, match="Expired"):
                await run.result()
    assert ran == ["slow"]


async def test_no_attempt_is_repeated_past_the_deadline() -> None:
    ran: list[str] = []

    @step(retry=Retry.fixed("1s"))
    async def failing() -> None:
        ran.append("failing")
        passing(env, 6)
        raise ValueError("always")

    @workflow("late.retry.v1")
    async def retrying(ctx: Context) -> None:
        await ctx.step(failing)

    async with Environment([retrying]) as env:
        run = await env.start(retrying(), deadline="10s")
        await env.advance("1m")
        with pytest.raises(RunFailed):
            await run.result()
    assert len(ran) == 2


async def test_no_child_is_started_past_the_deadline() -> None:
    async def quick(number: int) -> None:
        if number:
            passing(env, 20)

    @workflow("late.parent.v1")
    async def parent(ctx: Context) -> None:
        await asyncio.gather(ctx.step(quick, 0), ctx.step(quick, 1))
        await asyncio.gather(ctx.call(child()), ctx.step(quick, 2))

    async with Environment([parent, child]) as env:
        with slow_commits(env, 20):
            run = await env.start(parent(), deadline="10s")
            with pytest.raises(RunFailed, match="Expired"):
                await run.result()
        assert [one.type for one in (await env.engine.runs.list()).runs] == ["late.parent.v1"]


async def test_a_child_has_the_earlier_of_two_deadlines() -> None:
    @workflow("late.heir.v1")
    async def parent(ctx: Context) -> None:
        ctx.spawn(child(), id="own", deadline="5s")
        ctx.spawn(child(), id="inherited", deadline="1d", on_close="abandon")
        ctx.start(child(), id="free")
        await ctx.receive("never")

    async with Environment([parent, child]) as env:
        run = await env.start(parent(), deadline="10s")
        await env.settle()
        deadline = (await run.info()).deadline
        runs = {one.id: one for one in (await env.engine.runs.list()).runs}
        assert runs["own"].deadline < runs["inherited"].deadline == deadline < runs["free"].deadline
        await env.advance("11s")
        left = [one.id for one in (await env.engine.runs.list()).runs if not one.status.finished]
        assert left == ["free"]


async def test_a_sleep_ends_with_the_deadline_of_its_run() -> None:
    ran: list[str] = []

    async def after() -> None:
        ran.append("after")

    @workflow("late.sleep.v1")
    async def sleeping(ctx: Context) -> None:
        try:
            await ctx.sleep("1h")
        finally:
            await ctx.step(after)

    async with Environment([sleeping]) as env:
        run = await env.start(sleeping(), deadline="10m")
        await env.advance("9m")
        assert await run.status() is Status.WAITING
        await env.advance("1m")
        with pytest.raises(RunFailed, match="Expired"):
            await run.result()
        assert (await run.info()).finished_at == (await run.info()).deadline
    assert ran == []


async def test_cleanup_ends_with_the_deadline_too() -> None:
    ran: list[str] = []

    async def refund() -> None:
        ran.append("refund")

    @workflow("late.cleanup.v1")
    async def cleaning(ctx: Context) -> None:
        try:
            await ctx.receive("never")
        finally:
            await ctx.step(refund)
            await ctx.shield(ctx.sleep("1h"))

    async with Environment([cleaning]) as env:
        run = await env.start(cleaning(), deadline="10m")
        await env.settle()
        await run.cancel()
        await env.advance("11m")
        with pytest.raises(RunFailed, match="Expired"):
            await run.result()
    assert ran == ["refund"]
