"""Finding another worker for a run that is to leave this one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from perdure.core.model.run import Run
from perdure.core.model.worker_info import WorkerStatus
from perdure.core.system import System
from perdure.errors import StoreError
from perdure.store.contract import Store
from perdure.worker.claiming.claimer import Claimer

logger = logging.getLogger("perdure.worker")


async def move(
    run: Run, leave: Callable[[str | None], None], worker_id: str, store: Store, system: System, claimer: Claimer
) -> None:
    """Say where the run goes, and see to it that this worker does not take it back at once."""
    home = None
    try:
        home = await _another_home(run, worker_id, store, system)
    except StoreError as error:
        logger.warning("run %s is given back to anybody: %s", run.id, error)
    if home is not None:
        claimer.stand_off()
    asyncio.get_running_loop().call_soon(leave, home)


async def _another_home(run: Run, worker_id: str, store: Store, system: System) -> str | None:
    """A worker that lives and serves the run, other than this one; None if there is none."""
    now = store.clock()
    others = [
        worker.id
        for worker in await store.workers()
        if worker.id != worker_id
        and worker.status is WorkerStatus.ALIVE
        and worker.heartbeat_at + worker.lease >= now
        and run.type in worker.types
        and run.queue in worker.queues
    ]
    return others[int(system.random() * len(others))] if others else None
