"""What a run in a worker's hands was told by those who steer it: to pause, to go on, to leave.

A pause lasts from its entry in the inbox to the next RESUME or CANCEL there. Until then that entry and all behind it stay unread: a
worker that takes the run up anew finds them again. So the pause is as durable as the inbox is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from perdure.core.model.record import Message, RecordKind
from perdure.core.model.run import Reason, Run
from perdure.core.model.turn import NextState, Park, Release
from perdure.core.model.worker_info import WorkerStatus
from perdure.core.system import System
from perdure.errors import StoreError
from perdure.store.contract import Store

if TYPE_CHECKING:
    from perdure.worker.run.held_run import HeldRun
    from perdure.worker.services import Services

#: What only the worker is told; the history has no record of it.
UNRECORDED = frozenset({RecordKind.PAUSE, RecordKind.RESUME, RecordKind.EVICT, RecordKind.CALL})


class RunOrders:
    """See the module. A run has none before it is told something."""

    def __init__(self, held: HeldRun, services: Services) -> None:
        self._held = held
        self._services = services
        #: Up to which entry the inbox was looked at, whether that was taken in or not.
        self.inbox_known = held.seen
        self.paused = False
        #: It is to go to another worker, and whether it is known to which.
        self._moves = False
        self._leaves = False
        self._home: str | None = None
        self._withheld: list[Message] = []

    @property
    def holds_back(self) -> bool:
        """Whether nothing new is to begin."""
        return self.paused or self._moves

    def sift(self, messages: Iterable[Message]) -> list[Message]:
        """Those of the entries that may be taken in now, and that were not given before."""
        free: list[Message] = []
        for message in messages:
            if message.seq <= self.inbox_known:
                continue
            self.inbox_known = message.seq
            if message.kind in (RecordKind.RESUME, RecordKind.CANCEL):
                free += self._withheld
                self._withheld.clear()
                self.paused = False
            elif message.kind is RecordKind.PAUSE:
                self.paused = True
            elif (
                message.kind is RecordKind.EVICT and message.payload == str(self._held.lease.token) and not self._moves
            ):
                self._moves = True
                self._services.owner.moving(self._held, self.leave)
            (self._withheld if self.paused else free).append(message)
        return free

    def leave(self, home: str | None) -> None:
        """Go when nothing is under way, which is not waited for without end; others leave the run to that worker for a reading."""
        self._leaves, self._home = True, home
        services = self._services
        services.system.call_later(services.options.grace, self._held.release)
        try:
            self._held.settle(services.read_clock())
        except Exception as error:
            self._held.block(error)

    def next_state(self, *, ended: bool) -> NextState | None:
        """What becomes of a run with nothing under way; `ended`: it has an outcome, with which it will go on later."""
        if self.paused:
            return Park(self._held.run.deadline, Reason.PAUSED, self.inbox_known)
        return Release(self._home) if self._leaves and not ended else None


logger = logging.getLogger("perdure.worker")


async def move(
    run: Run,
    leave: Callable[[str | None], None],
    worker_id: str,
    store: Store,
    system: System,
    stand_off: Callable[[], None],
) -> None:
    """Say where the run goes, and see to it that this worker does not take it back at once."""
    home = None
    try:
        home = await _other_worker(run, worker_id, store, system)
    except StoreError as error:
        logger.warning("run %s is given back to anybody: %s", run.id, error)
    if home is not None:
        stand_off()
    asyncio.get_running_loop().call_soon(leave, home)


async def _other_worker(run: Run, worker_id: str, store: Store, system: System) -> str | None:
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
