"""Warnings about children that no live worker takes: without one, their parents wait and nothing says why.

A child of a type that this worker serves costs a lookup. The first child of another type is read again a few seconds
later, off the path of its parent; if it is not there yet, or the database refuses, it is read again after pauses that
double. A type is warned of once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection

from perdure.core.model.run import Run
from perdure.core.model.worker_info import is_unserved
from perdure.core.routing import served_elsewhere
from perdure.core.system import Cancellable, System
from perdure.errors import StoreError
from perdure.store.contract import Store

logger = logging.getLogger("perdure.worker")

#: Seconds after which a child that no worker has claimed is looked at.
_PATIENCE = 5.0
#: Seconds before a type that another worker serves is looked at again; a child that is not there is given up before a
#: pause of this length.
_AGAIN = 300.0


class UnservedChildren:
    """Looks after children of types that this worker does not serve."""

    def __init__(self, system: System, store: Store, served: Collection[str]) -> None:
        self._system = system
        self._store = store
        self._served = served
        #: Types that are being looked at or were, with the timer of the next look.
        self._types: dict[str, Cancellable | None] = {}
        self._looking: set[asyncio.Task[None]] = set()
        self._stopped = False

    def note(self, type: str, child_id: str, parent_id: str) -> None:
        """Note that a run starts a child."""
        if self._stopped or type in self._served or type in self._types:
            return
        self._look_later(type, child_id, parent_id, _PATIENCE)

    def stop(self) -> None:
        """Look at nothing any more."""
        self._stopped = True
        for timer in self._types.values():
            if timer is not None:
                timer.cancel()
        self._types.clear()
        for task in self._looking:
            task.cancel()

    def _look_later(self, type: str, child_id: str, parent_id: str, pause: float) -> None:
        def begin() -> None:
            task = self._system.spawn(self._look(type, child_id, parent_id, pause), "perdure unserved child")
            self._looking.add(task)
            task.add_done_callback(self._looking.discard)

        self._types[type] = self._system.call_later(pause, begin)

    async def _look(self, type: str, child_id: str, parent_id: str, pause: float) -> None:
        try:
            child = await self._store.get(child_id)
            unserved = child is not None and await self._is_unserved(child)
        except StoreError:
            child, unserved = None, False
        if child is None:
            # The turn that starts it may not be committed yet, or never will be.
            if 2 * pause < _AGAIN:
                self._look_later(type, child_id, parent_id, 2 * pause)
            else:
                self._types.pop(type, None)
            return
        if not unserved:
            self._types[type] = self._system.call_later(_AGAIN, lambda: self._types.pop(type, None))
            return
        self._types[type] = None
        logger.warning(
            "run %s waits for its child %s of the type %r, which no live worker serves in the queue %r; add the type "
            "to a worker's engine, `Engine(url, [...])`, or start a worker that has it",
            *(parent_id, child_id, type, child.queue),
            extra={"run_id": parent_id, "child_id": child_id},
        )

    async def _is_unserved(self, child: Run) -> bool:
        workers, types = await self._store.workers(), await self._store.types()
        return is_unserved(child, workers, served_elsewhere(types), await self._store.now())
