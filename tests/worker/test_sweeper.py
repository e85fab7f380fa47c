"""Work that a sweep hands on."""

from __future__ import annotations

import asyncio
from typing import cast

from perdure.core.background_loops import LoopHealth
from perdure.core.model.worker_info import SweepResult
from perdure.host import Host
from perdure.store.contract import Store
from perdure.worker.sweeper import Sweeper


class Finding:
    """A store whose sweeps find a singleton without a successor each time."""

    def __init__(self) -> None:
        self.sweeps = 0
        self.succeeded: list[str] = []
        self.done = asyncio.Event()

    async def sweep(self, limit: int) -> SweepResult:
        self.sweeps += 1
        return SweepResult(dead_workers=(), released=0, expired=0, more=False, successions=(f"name-{self.sweeps}",))

    async def start_successors(self, names: list[str], actor: str) -> None:
        self.succeeded += names
        if len(self.succeeded) == 2:
            self.done.set()

    async def forget_gates(self, limit: int, actor: str) -> int:
        return 0


async def test_each_sweep_looks_after_the_singletons_that_it_found() -> None:
    store, health = Finding(), LoopHealth()
    sweeper = Sweeper(cast("Store", store), Host(), 0.01, lambda: None, health)
    sweeper.start()
    await asyncio.wait_for(store.done.wait(), 60)
    await sweeper.stop()
    assert store.succeeded[0] == "name-1"
    assert health.total == 0
