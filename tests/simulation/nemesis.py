"""Nemesis: kills, stalls and restarts workers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import TYPE_CHECKING

from tests.simulation.loop import Lane

if TYPE_CHECKING:
    from tests.simulation.world import Life, World

#: A lease, in seconds; short, so that much happens in little time.
LEASE = 3.0
#: Workers at work at the same time, at the most.
MOST = 4


class Nemesis:
    """Does one thing after the other, of the few kinds that it has chosen for this world."""

    def __init__(self, world: World, rng: Random) -> None:
        self._world = world
        self._rng = rng
        self._pause = rng.choice((0.3, 1.0, 3.0))
        self._stalled: list[Lane] = []
        kinds: list[Callable[[Life], Awaitable[None]]] = [
            self._kill, self._kill, self._stall, self._stall, self._block, self._restart, self._nothing,
        ]  # fmt: skip
        self._kinds = [kind for kind in kinds if rng.random() < 0.6] or [self._nothing]

    async def run(self) -> None:
        """Make trouble until cancelled."""
        while True:
            await asyncio.sleep(self._rng.expovariate(1.0) * self._pause)
            lives = [life for life in self._world.lives if not life.process.dead and not life.stopping]
            if lives:
                await self._rng.choice(self._kinds)(self._rng.choice(lives))
            if len(lives) < MOST and (not lives or self._rng.random() < 0.5):
                self._world.begin_life()

    def undo(self) -> None:
        """Let everything that is stalled go on."""
        for lane in self._stalled:
            lane.stalls = 0

    async def _nothing(self, _: Life) -> None:
        return

    async def _kill(self, life: Life) -> None:
        self._world.ledger.note("nemesis kills", life.process.name)
        self._world.ledger.sometimes["a worker was killed"] += 1
        self._world.database.kill(life.process)

    async def _stall(self, life: Life) -> None:
        """The whole process stands still, and wakes up to a world that has gone on."""
        self._world.ledger.note("nemesis stalls", life.process.name)
        self._world.ledger.sometimes["a worker stood still"] += 1
        self._hold(list(life.process.lanes))

    async def _block(self, life: Life) -> None:
        """Blocking code on the event loop: the heart goes on beating in its thread."""
        self._world.ledger.note("nemesis blocks", life.process.name)
        self._world.ledger.sometimes["a worker's event loop was blocked"] += 1
        self._hold([life.process.main])

    def _hold(self, lanes: list[Lane]) -> None:
        for lane in lanes:
            lane.stalls += 1
        self._stalled += lanes
        self._world.loop.call_later(self._rng.random() * 3 * LEASE, self._release, lanes)

    def _release(self, lanes: list[Lane]) -> None:
        for lane in lanes:
            lane.stalls = max(0, lane.stalls - 1)

    async def _restart(self, life: Life) -> None:
        self._world.ledger.note("nemesis restarts", life.process.name)
        self._world.ledger.sometimes["a worker was stopped in order"] += 1
        self._world.stop(life)
