"""Finding another worker for a run that is to leave this one."""

from __future__ import annotations

from perdure.core.fleet import WorkerStatus
from perdure.core.model import Run
from perdure.core.system import System
from perdure.store.protocol import Store


async def another_home(store: Store, run: Run, worker_id: str, system: System) -> str | None:
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
