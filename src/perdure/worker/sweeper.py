"""Looking after what nobody holds: runs of dead workers, and runs past their deadline. Every worker does it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from perdure.core.background_loops import Guard, Health
from perdure.core.policy.retention import Retention
from perdure.core.system import System
from perdure.errors import StoreError
from perdure.store.contract import Store
from perdure.worker.aging import Aging
from perdure.worker.claiming.singletons import succeed

logger = logging.getLogger("perdure.worker")

#: Runs given back in one transaction.
BATCH = 500
#: One in so many sweeps forgets what nobody uses.
_FORGETS_EVERY = 8


class Sweeper:
    """Sweeps about twice a lease; `beside` is called as often."""

    def __init__(
        self,
        store: Store,
        system: System,
        lease: float,
        beside: Callable[[], object],
        health: Health,
        retention: Retention | None = None,
    ) -> None:
        self._guard = Guard("sweeper", system, health, logger)
        self._guard_aging = Guard("retention", system, health, logger)
        self._guard_succession = Guard("succession", system, health, logger)
        self._store = store
        self._system = system
        self._lease = lease
        self._beside = beside
        self._aging = None if retention is None else Aging(store, system, retention)
        self._tasks: list[asyncio.Task[None]] = []
        self._sweeps = 0
        self._succession: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to sweep."""
        self._tasks.append(self._system.spawn(self._guard.keep_going(self._run), "perdure sweeper"))
        if self._aging is not None:
            self._tasks.append(self._system.spawn(self._guard_aging.keep_going(self._aging.run), "perdure aging"))

    async def stop(self) -> None:
        """Stop sweeping."""
        tasks, self._tasks = self._tasks, []
        if self._succession is not None:
            tasks.append(self._succession)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _run(self) -> None:
        while True:
            swept = await self._store.sweep(BATCH)
            self._guard.succeeded()
            for worker in swept.dead_workers:
                logger.warning("worker %s is dead; its runs are given to others", worker)
            # One that died with nothing in its hands may have died before it could say what it had let go of.
            if swept.released or swept.expired or swept.dead_workers:
                await self._make_room()
            self._look_after(swept.successions)
            if swept.more:
                await self._system.sleep(0)
                continue
            self._beside()
            await self._forget_gates()
            await self._system.sleep(self._lease / 2 * (0.8 + 0.4 * self._system.random()))

    def _look_after(self, names: Sequence[str]) -> None:
        """Let the next ones begin. Beside the sweep: somebody's transaction may have one locked, and for long."""
        if names and (self._succession is None or self._succession.done()):
            self._succession = self._system.spawn(self._succeed(names), "perdure successions")

    async def _succeed(self, names: Sequence[str]) -> None:
        for name in names:
            try:
                await succeed([name], self._store, "sweep")
            except Exception as error:
                # The next sweep finds this one again; the others need not wait for it.
                await self._system.sleep(self._guard_succession.failed(error))

    async def _forget_gates(self) -> None:
        """Now and then, and a full batch is followed by another one with the next sweep."""
        self._sweeps += 1
        if self._sweeps % _FORGETS_EVERY:
            return
        try:
            if await self._store.forget_gates(BATCH, "sweep") == BATCH:
                self._sweeps -= 1
        except StoreError as error:
            logger.warning("gates of keys that nobody uses are kept a little longer: %s", error)

    async def _make_room(self) -> None:
        """What is not worked on any more may have kept others from passing their gates."""
        try:
            await self._store.stir_gates("sweep")
        except StoreError as error:
            logger.warning("gates are looked at a little later: %s", error)
