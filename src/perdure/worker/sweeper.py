"""Looking after what nobody holds: runs of dead workers, runs past their deadline, and runs that are over and old. Every worker does it.

Old runs are looked for now and then, by each worker at random times of its own, so that mostly one is at it; two do not disturb
each other. Each rule goes on where it stopped: what was passed over is looked at again once a day.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from perdure.core.errors import StoreError
from perdure.core.retention import Prune, Retention
from perdure.core.system import System
from perdure.store.protocol import Store

logger = logging.getLogger("perdure.worker")

#: Runs given back in one transaction.
BATCH = 500
#: Runs looked at for deleting in one transaction, and the time to leave others in between, in seconds.
PRUNED = 100
PAUSE = 0.05
#: How long, in seconds, a worker mostly leaves between two looks for old runs, and after how many of them it looks at all again.
LOOK = 600.0
ALL_AGAIN = 144


class Sweeper:
    """Sweeps about twice a lease, with `beside` called as often, and prunes every ten minutes or so."""

    def __init__(
        self,
        store: Store,
        system: System,
        lease: float,
        beside: Callable[[], object],
        retention: Retention | None = None,
    ) -> None:
        self._store = store
        self._system = system
        self._lease = lease
        self._beside = beside
        self._retention = retention
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to sweep."""
        self._tasks.append(self._system.spawn(self._run(), "perdure sweeper"))
        if self._retention is not None:
            self._tasks.append(self._system.spawn(self._prune(self._retention), "perdure pruner"))

    async def stop(self) -> None:
        """Stop sweeping."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _run(self) -> None:
        while True:
            try:
                swept = await self._store.sweep(BATCH)
            except StoreError as error:
                logger.warning("sweep failed: %s", error)
            else:
                for worker in swept.dead_workers:
                    logger.warning("worker %s is dead; its runs are given to others", worker)
                if swept.more:
                    await self._system.sleep(0)
                    continue
            self._beside()
            await self._system.sleep(self._lease / 2 * (0.8 + 0.4 * self._system.random()))

    async def _prune(self, retention: Retention) -> None:
        places: dict[int, str | None] = {}
        looks = 0
        # The first look soon, so that short-lived workers do it, too; not at once, when all of a fleet begin.
        wait = LOOK / 10
        while True:
            await self._system.sleep(wait * (0.5 + self._system.random()))
            if looks % ALL_AGAIN == 0:
                places.clear()
            for number, rule in enumerate(retention.rules(self._store.clock())):
                places[number] = await self._prune_by(rule, places.get(number))
            looks += 1
            wait = LOOK

    async def _prune_by(self, rule: Prune, place: str | None) -> str | None:
        """Delete what is old by one rule; where to go on the next time."""
        runs = 0
        try:
            while True:
                batch = await self._store.prune(rule, PRUNED, place, "retention")
                runs += batch.runs
                if batch.cursor is None:
                    break
                place = batch.cursor
                await self._system.sleep(PAUSE)
        except StoreError as error:
            logger.warning("pruning failed: %s", error)
        if runs:
            logger.info("pruned %d runs that were over before %d", runs, rule.before)
        return place
