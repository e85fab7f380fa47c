"""Orders to a held run: pause, resume, move to another worker.

A pause lasts from its entry in the inbox to the next RESUME or CANCEL there. Until then that entry and all behind it
stay unread, so a worker that claims the run anew finds them again: the pause is as durable as the inbox.
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

#: Orders to the worker alone; the history has no record of them.
UNRECORDED = frozenset({RecordKind.PAUSE, RecordKind.RESUME, RecordKind.EVICT, RecordKind.CALL})


class RunOrders:
    """Orders that one run has received. A run has none of these before its first order."""

    def __init__(self, held: HeldRun, services: Services) -> None:
        self._held = held
        self._services = services
        #: Number of the last inbox entry that was examined, taken in or not.
        self.inbox_known = held.seen
        self.paused = False
        #: Whether the run is to move, and whether the worker that it goes to is known.
        self._moves = False
        self._leaves = False
        self._home: str | None = None
        self._withheld: list[Message] = []

    @property
    def blocks_steps(self) -> bool:
        """True if no new step may begin."""
        return self.paused or self._moves

    def accept(self, messages: Iterable[Message]) -> list[Message]:
        """Return the new entries that may be taken in now. A pause withholds those behind it."""
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
                self._services.owner.relocate(self._held, self.leave)
            (self._withheld if self.paused else free).append(message)
        return free

    def leave(self, home: str | None) -> None:
        """Give the run to another worker once nothing is under way, or when the grace period ends.

        For a short time, workers other than `home` do not claim it.
        """
        self._leaves, self._home = True, home
        services = self._services
        services.system.call_later(services.settings.grace, self._held.release)
        try:
            self._held.settle(services.read_clock())
        except Exception as error:
            self._held.block(error)

    def next_state(self, *, ended: bool) -> NextState | None:
        """Next state of a run with nothing under way; None if no order decides it.

        `ended`: the workflow has an outcome with which the run goes on later (continue as new).
        """
        if self.paused:
            return Park(self._held.run.deadline, Reason.PAUSED, self.inbox_known)
        return Release(self._home) if self._leaves and not ended else None


logger = logging.getLogger("perdure.worker")


async def relocate(
    run: Run,
    leave: Callable[[str | None], None],
    worker_id: str,
    store: Store,
    system: System,
    avoid_reclaim: Callable[[], None],
) -> None:
    """Find another worker for a run and tell the run. This worker does not claim it back at once."""
    home = None
    try:
        home = await _other_worker(run, worker_id, store, system)
    except StoreError as error:
        logger.warning("run %s is given back to anybody: %s", run.id, error)
    if home is not None:
        avoid_reclaim()
    asyncio.get_running_loop().call_soon(leave, home)


async def _other_worker(run: Run, worker_id: str, store: Store, system: System) -> str | None:
    """Id of a random live worker, other than this one, that serves the run; None if there is none."""
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
