"""Looking after what nobody holds: runs of dead workers, and runs past their deadline. Every worker does it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from perdure.core.errors import StoreError
from perdure.core.system import System
from perdure.store.protocol import Store

logger = logging.getLogger("perdure.worker")

#: Runs given back in one transaction.
BATCH = 500


class Sweeper:
    """Sweeps about twice a lease; `beside` is called as often."""

    def __init__(self, store: Store, system: System, lease: float, beside: Callable[[], object]) -> None:
        self._store = store
        self._system = system
        self._lease = lease
        self._beside = beside
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to sweep."""
        self._task = self._system.spawn(self._run(), "perdure sweeper")

    async def stop(self) -> None:
        """Stop sweeping."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

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
