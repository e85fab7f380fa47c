"""A worker lets go of a run only if the run's lease is gone, and counts its own lease from before it asked."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import pytest

from perdure import Context, Workflow, workflow
from perdure.client.workers import EngineWorker
from perdure.core.background_loops import LoopHealth
from perdure.core.model.turn import Lease, Turn, TurnOutcome
from perdure.core.model.worker_info import HeartbeatResult
from perdure.store import open_store
from perdure.store.contract import Store
from perdure.testing.conformance.harness import ManualSystem, a_worker
from perdure.worker.heartbeat import SAFE_SHARE, Heartbeat
from tests.helpers import eventually
from tests.stage import Stage

pytestmark = pytest.mark.every_database

LEASE = 15.0


class Holding:
    """A workflow of one step that goes on until it is told to end."""

    def __init__(self) -> None:
        self.begun, self.go_on = asyncio.Event(), asyncio.Event()
        self.attempts = 0

    def workflow(self) -> Workflow[[], int]:
        async def hold() -> int:
            self.attempts += 1
            self.begun.set()
            await self.go_on.wait()
            return self.attempts

        @workflow("leases.holding.v1")
        async def holding(ctx: Context) -> int:
            return await ctx.step(hold)

        return holding


@workflow("leases.other.v1")
async def other(ctx: Context) -> None:
    await ctx.receive("never")


async def test_a_run_that_a_lagging_replica_does_not_list_is_kept(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Holding()
    holding = step.workflow()
    engine = stage.engine(holding, other)
    store, checked = engine._session.store, asyncio.Event()
    get_many = store.get_many

    async def lagging(worker_id: str) -> list[Lease]:
        return []

    async def check(run_ids: Sequence[str]) -> Any:
        runs = await get_many(run_ids)
        # What the answer leads to has happened when the next callback is called.
        asyncio.get_running_loop().call_later(0, checked.set)
        return runs

    async with engine.worker():
        run = await engine.start(holding())
        await step.begun.wait()
        monkeypatch.setattr(store, "leases", lagging)
        monkeypatch.setattr(store, "get_many", check)
        # Makes the worker compare the leases at once.
        await (await engine.start(other())).terminate()
        await asyncio.wait_for(checked.wait(), 60)
        monkeypatch.undo()
        step.go_on.set()
        assert await run.result("20s") == 1


async def test_the_loss_of_an_earlier_lease_leaves_the_run_of_a_later_one_alone(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    step = Holding()
    holding = step.workflow()
    engine = stage.engine(holding)
    async with engine.worker() as worker:
        run = await engine.start(holding())
        await step.begun.wait()
        [lease] = await _leases(worker, engine._session.store)
        _lose(worker, Lease(lease.run_id, lease.token - 1, lease.nonce))
        _lose(worker, Lease(lease.run_id, lease.token, "the nonce of another claim"))
        step.go_on.set()
        assert await run.result("20s") == 1
    assert "lease_lost" not in caplog.text


async def test_a_run_is_not_lost_while_its_own_turn_may_have_ended_the_lease(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    step = Holding()
    holding = step.workflow()
    engine = stage.engine(holding)
    store = engine._session.store
    commit, written, answer = store.commit, asyncio.Event(), asyncio.Event()

    async def commit_and_answer_late(turns: Sequence[Turn], actor: str) -> list[TurnOutcome]:
        outcomes = await commit(turns, actor)
        written.set()
        await answer.wait()
        return outcomes

    async with engine.worker() as worker:
        run = await engine.start(holding())
        await step.begun.wait()
        [lease] = await _leases(worker, store)
        monkeypatch.setattr(store, "commit", commit_and_answer_late)
        step.go_on.set()
        await asyncio.wait_for(written.wait(), 60)
        with caplog.at_level(logging.WARNING, "perdure.worker"):
            _lose(worker, lease)
        answer.set()
        assert await run.result("20s") == 1
    assert "lease_lost" not in caplog.text


async def _leases(worker: EngineWorker, store: Store) -> list[Lease]:
    return await store.leases(worker.id)


def _lose(worker: EngineWorker, lease: Lease) -> None:
    assert worker._worker is not None
    worker._worker.lose(lease)


class Beating:
    """A heartbeat on a manual clock, whose database takes some seconds to answer."""

    def __init__(self, seconds: float) -> None:
        self.system = ManualSystem()
        self.store = open_store("sqlite://", self.system, inline=True)
        self.seconds = seconds
        #: What it has said: `died` or `drain`.
        self.told: list[str] = []
        #: For each heartbeat the time before it, and the time until which the lease was safe then.
        self.asked: list[tuple[float, float]] = []
        #: The worker is declared dead before the heartbeat of this number.
        self.dies_at = 0
        #: Whether an operator has ordered it to drain.
        self.drains = False

    async def begin(self) -> Heartbeat:
        await self.store.open()
        await self.store.register(a_worker("w1"))
        write = self.store.heartbeat

        async def write_and_answer_late(worker_id: str, running: str | None = None) -> HeartbeatResult:
            self.asked.append((self.system.monotonic(), heartbeat.safe_until))
            if len(self.asked) == self.dies_at:
                await self.store.retire(worker_id)
            alive = await write(worker_id, running)
            self.system.advance(self.seconds)
            return HeartbeatResult.DRAIN if self.drains else alive

        self.store.heartbeat = write_and_answer_late  # type: ignore[method-assign] # the answer takes its time
        heartbeat = Heartbeat(
            self.store, self.system, "w1",
            lease=LEASE, stall_limit=LEASE, health=LoopHealth(),
            on_dead=lambda: self.told.append("died"), on_drain=lambda: self.told.append("drain"),
            running=lambda: None,
        )  # fmt: skip
        return heartbeat


async def test_a_renewed_lease_counts_from_before_the_heartbeat_was_asked_for() -> None:
    beating = Beating(seconds=4)
    heartbeat = await beating.begin()
    beating.system.advance(LEASE)
    assert not heartbeat.is_safe()
    before = beating.system.monotonic()
    await heartbeat.renew()
    assert heartbeat.safe_until == before + LEASE * SAFE_SHARE
    assert heartbeat.is_safe()
    assert beating.told == []
    beating.drains = True
    await heartbeat.renew()
    assert beating.told == ["drain"]
    beating.dies_at, beating.drains = 3, False
    await heartbeat.renew()
    assert beating.told == ["drain", "died"]
    await beating.store.close()


async def test_a_lease_that_is_kept_counts_from_before_each_heartbeat() -> None:
    beating = Beating(seconds=4)
    heartbeat = await beating.begin()
    beating.dies_at = 3
    await heartbeat._beat()
    asked, safe_until = zip(*beating.asked, strict=True)
    assert safe_until[1:] == tuple(time + LEASE * SAFE_SHARE for time in asked[:2])
    await eventually(lambda: beating.told == ["died"])
    await beating.store.close()
