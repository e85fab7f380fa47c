"""Frequency of a worker's queries for runs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from perdure import Context, Engine, workflow
from perdure.core.model.claim import ClaimRequest, ClaimResult
from perdure.core.model.turn import Finish, Turn, TurnOutcome
from perdure.host import Host
from perdure.store import Store, open_store
from perdure.worker import Worker
from tests.helpers import eventually


class Counting:
    """A store that counts the claims made of it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.claims = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def claim(self, request: ClaimRequest) -> ClaimResult:
        self.claims += 1
        return await self._store.claim(request)


class LateAnswers(Counting):
    """Answers to the write of an outcome only when the next claim is under way, and to that claim after it."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.worker: Worker | None = None
        self._next_claim = asyncio.Event()

    async def commit(self, turns: Sequence[Turn], actor: str) -> list[TurnOutcome]:
        outcomes = await self._store.commit(turns, actor)
        if any(isinstance(turn.next, Finish) for turn in turns):
            await self._next_claim.wait()
        return outcomes

    async def claim(self, request: ClaimRequest) -> ClaimResult:
        claimed = await super().claim(request)
        if self.worker is not None:
            self._next_claim.set()
            worker = self.worker
            await eventually(lambda: worker.holds_nothing)
        return claimed


async def work() -> int:
    return 1


@workflow("asking.v1")
async def one_step(ctx: Context) -> int:
    return await ctx.step(work)


async def test_a_run_is_asked_for_once_and_its_end_asks_for_nothing(tmp_path: Path) -> None:
    system = Host()
    file = open_store(f"sqlite:///{tmp_path}/app.db", system)
    # Nothing else writes to it. The query once a second would count if the machine is busy for that long.
    file.poll_interval = 60.0
    store = Counting(file)
    async with Engine("sqlite:///app.db", [one_step], system=system, store=store) as engine, engine.worker():
        await eventually(lambda: store.claims > 0)
        await (await engine.start(one_step())).result()
        before = store.claims
        for _ in range(10):
            await (await engine.start(one_step())).result()
        assert store.claims - before == 10


async def test_a_slot_that_is_freed_during_a_claim_that_found_all_there_is_asks_for_nothing(tmp_path: Path) -> None:
    """The client learns of an outcome before the worker has the answer to its write, and starts the next run."""
    system = Host()
    file = open_store(f"sqlite:///{tmp_path}/app.db", system)
    file.poll_interval = 60.0
    store = LateAnswers(file)
    async with Engine("sqlite:///app.db", [one_step], system=system, store=store) as engine, engine.worker() as worker:
        await eventually(lambda: store.claims > 0)
        first = await engine.start(one_step())
        assert await first.result("60s") == 1
        assert worker._worker is not None
        before, store.worker = store.claims, worker._worker
        assert await (await engine.start(one_step())).result("60s") == 1
        await eventually(lambda: worker._worker is not None and worker._worker.quiet)
        assert store.claims - before == 1


async def test_a_worker_that_is_busy_with_another_run_wakes_one_when_its_time_has_come() -> None:
    go_on = asyncio.Event()

    async def hold() -> None:
        await go_on.wait()

    @workflow("asking.busy.v1")
    async def busy(ctx: Context) -> None:
        await ctx.step(hold)

    @workflow("asking.sleeping.v1")
    async def sleeping(ctx: Context) -> str:
        await ctx.sleep("200ms")
        return "awake"

    # No other process can write to a database in memory, so its workers do not poll it.
    async with Engine("sqlite://", [busy, sleeping]) as engine, engine.worker():
        other = await engine.start(busy())
        assert await (await engine.start(sleeping())).result("20s") == "awake"
        go_on.set()
        await other.result()
