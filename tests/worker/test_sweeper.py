"""Work that a sweep hands on."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from perdure.core.background_loops import LoopHealth
from perdure.core.model.worker_info import SweepResult
from perdure.host import Host
from perdure.store.contract import Store
from perdure.worker.sweeper import Sweeper
from tests.helpers import eventually


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


class Resting(Host):
    """A host that notes the first pause."""

    def __init__(self) -> None:
        super().__init__()
        self.pauses: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        await asyncio.get_running_loop().create_future()


class Alive:
    """A store with a worker whose lease ends soon, or without any."""

    def __init__(self, lease_ends_in: int | None) -> None:
        self._lease_ends_in = lease_ends_in

    async def sweep(self, limit: int) -> SweepResult:
        return SweepResult(dead_workers=(), released=0, expired=0, more=False, lease_ends_in=self._lease_ends_in)


@pytest.mark.parametrize(
    ("ends_in", "earliest", "latest"),
    [(2_000_000, 2.0, 2.5), (0, 0.0, 0.5), (12_000_000, 6.0, 9.0), (None, 6.0, 9.0)],
)
async def test_the_next_sweep_comes_right_after_the_end_of_a_lease(
    ends_in: int | None, earliest: float, latest: float
) -> None:
    system = Resting()
    sweeper = Sweeper(cast("Store", Alive(ends_in)), system, 15.0, lambda: None, LoopHealth())
    sweeper.start()
    await eventually(lambda: system.pauses, saying="the sweeper having rested")
    await sweeper.stop()
    assert earliest < system.pauses[0] <= latest


async def test_each_sweep_looks_after_the_singletons_that_it_found() -> None:
    store, health = Finding(), LoopHealth()
    sweeper = Sweeper(cast("Store", store), Host(), 0.01, lambda: None, health)
    sweeper.start()
    await asyncio.wait_for(store.done.wait(), 60)
    await sweeper.stop()
    assert store.succeeded[0] == "name-1"
    assert health.total == 0
