"""A cancellation reaches down through every level, whatever the state of a child is."""

from __future__ import annotations

from typing import Literal

import pytest

from perdure import Context, RunCancelled, Status, workflow
from perdure.admin import Reason
from perdure.core.model.claim import ClaimRequest
from perdure.core.model.turn import Block, Turn, TurnOutcome
from perdure.store import Store
from perdure.testing.conformance.harness import a_worker
from tests.stage import Stage, until

OnClose = Literal["cancel", "wait"]


@workflow("tree.leaf.v1")
async def leaf(ctx: Context) -> str:
    return await ctx.receive("never", str)


@workflow("tree.branch.v1")
async def branch(ctx: Context) -> None:
    ctx.spawn(leaf(), id=f"{ctx.run_id}-unserved", queue="unserved")
    ctx.spawn(leaf(), id=f"{ctx.run_id}-waiting")
    ctx.spawn(leaf(), id=f"{ctx.run_id}-paused")
    ctx.spawn(leaf(), id=f"{ctx.run_id}-loose", on_close="abandon")
    await ctx.receive("never")


@workflow("tree.root.v1")
async def root(ctx: Context) -> None:
    ctx.spawn(branch(), id="called")
    ctx.spawn(branch(), id="awaited", on_close="wait")
    await ctx.receive("never")


async def test_a_cancellation_reaches_every_level_whatever_the_state_of_a_child_is(stage: Stage) -> None:
    engine = stage.engine(root, branch, leaf)
    async with engine.worker():
        run = await engine.start(root(), id="root")
        await until(run, Status.WAITING)
        leaves: dict[str, list[str]] = {}
        for name in ("called", "awaited"):
            await until(await engine.get(name), Status.WAITING)
            leaves[name] = [f"{name}-{state}" for state in ("unserved", "waiting", "paused")]
            for one in (f"{name}-waiting", f"{name}-paused", f"{name}-loose"):
                await until(await engine.get(one), Status.WAITING)
            await engine.runs.pause(f"{name}-paused")
        await run.cancel("enough")
        with pytest.raises(RunCancelled, match="enough"):
            await run.result("20s")
        for name in ("called", "awaited", *leaves["called"], *leaves["awaited"]):
            with pytest.raises(RunCancelled):
                await (await engine.get(name)).result("20s")
        for name in leaves:
            loose = await engine.get(f"{name}-loose")
            assert not (await loose.status()).finished
    # A run that is waited for existed before the one that waits.
    assert (await (await engine.get("awaited")).info()).finished_at <= (await run.info()).finished_at


async def test_a_cancellation_passes_through_a_child_that_is_blocked(stage: Stage) -> None:
    engine = stage.engine(root, branch, leaf)
    async with engine.worker():
        run = await engine.start(root(), id="root")
        for name in ("root", "called", "awaited", "called-waiting"):
            await until(await engine.get(name), Status.WAITING)
    assert stage.store is not None
    await engine.send("called", "other")
    await block(stage.store, "tree.branch.v1")
    assert await (await engine.get("called")).status() is Status.BLOCKED
    async with engine.worker():
        await run.cancel("enough")
        with pytest.raises(RunCancelled):
            await (await engine.get("called-waiting")).result("20s")
        assert not (await (await engine.get("called-loose")).status()).finished


async def test_why_a_parent_waits_says_what_is_the_matter_with_its_child(stage: Stage) -> None:
    @workflow("tree.caller.v1")
    async def caller(ctx: Context) -> str:
        return await ctx.call(leaf())

    engine = stage.engine(caller)
    async with engine.worker():
        run = await engine.start(caller(), id="p")
        await until(run, Status.WAITING)
        assert (await run.info()).reason is Reason.CHILD
        for handle in (run, await engine.get("p/tree.leaf.v1")):
            assert "serves the type 'tree.leaf.v1'" in await handle.why()
        assert "p/tree.leaf.v1" in await run.why()


async def test_a_child_is_cancelled_with_a_parent_whose_next_worker_knows_of_no_record(stage: Stage) -> None:
    @workflow("tree.caller.v1")
    async def caller(ctx: Context) -> str:
        return await ctx.call(leaf())

    engine = stage.engine(caller, leaf)
    run = await engine.start(caller(), id="p")
    async with engine.worker():
        await until(run, Status.WAITING)
    child = await engine.get("p/tree.leaf.v1")
    await run.cancel()
    async with engine.worker():
        for handle in (run, child):
            with pytest.raises(RunCancelled):
                await handle.result("20s")


@pytest.mark.parametrize("on_close", ["cancel", "wait"])
async def test_a_parent_cancelled_before_its_child_was_started_ends(stage: Stage, on_close: OnClose) -> None:
    @workflow("tree.late.v1")
    async def late(ctx: Context) -> None:
        await ctx.receive("go")
        ctx.spawn(leaf(), id="child", on_close=on_close)
        await ctx.receive("never")

    engine = stage.engine(late, leaf)
    run = await engine.start(late())
    async with engine.worker():
        await until(run, Status.WAITING)
    await run.send("go")
    await run.cancel("enough")
    async with engine.worker():
        with pytest.raises(RunCancelled, match="enough"):
            await run.result("20s")
    assert [one.id for one in (await engine.runs.list()).runs if not one.status.finished] == []


async def block(store: Store, type: str) -> None:
    """Set a run of that type aside, as a worker does whose code does not fit."""
    await store.register(a_worker("w", types=(type,)))
    [claimed] = (await store.claim(ClaimRequest(worker="w", nonce="n", limit=1, types=(type,)))).runs
    assert await store.commit([Turn(lease=claimed.lease, next=Block(Reason.POISON, "{}"))], "w") == [
        TurnOutcome.APPLIED
    ]
    await store.retire("w")
