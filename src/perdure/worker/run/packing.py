"""Packing of long histories: the worker that holds a run stores its old records in few rows.

A run is packed each time that its history has grown by one segment, while it goes on. The newest segment stays as it
is, and so does a history that is shorter than two segments. The next packing makes up for one that fails, or that the
end of the lease cuts short.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from perdure.core.time.duration import NEVER
from perdure.errors import StoreError
from perdure.store.contract import Store
from perdure.worker.run.held_run import Stage

if TYPE_CHECKING:
    from perdure.worker.run.workflow_run import WorkflowRun

logger = logging.getLogger("perdure.worker")


#: How far a replayed history may be past the length to pack at, as a part of a segment, for a new holder to pack it.
_OVERDUE = 20


def next_packing(segment: int, records: int) -> int:
    """Length at which a history of so many records is packed next."""
    return max(2, records // segment + 1) * segment if segment else NEVER


def first_packing(segment: int, records: int) -> int:
    """Length at which a new holder packs a history of so many records.

    A run that parks with the record at which it would be packed is released first. So the next holder packs it if it
    has just passed that length.
    """
    return next_packing(segment, max(0, records - max(1, segment // _OVERDUE)))


class HistoryPacking:
    """Packing of one held run."""

    def __init__(self, held: WorkflowRun, segment: int) -> None:
        self._held = held
        self._segment = segment
        #: Records below the first number were packed by this object; those below the second shall be.
        self._done = self._upto = 0
        self._under_way = False

    def begin(self, durable: int) -> bool:
        """Have all but the newest segment of the first `durable` records packed; False: `pack` is under way already."""
        self._upto = durable - durable % self._segment - self._segment
        begins, self._under_way = not self._under_way, True
        return begins

    async def pack(self, store: Store, actor: str) -> None:
        """Pack what is to be packed, each segment in a transaction of its own."""
        held, lease = self._held, self._held.lease
        try:
            while self._done < self._upto and held.lease is lease and held.stage is Stage.ACTIVE:
                if not await store.pack(lease, self._done, self._done + self._segment - 1, actor):
                    return
                self._done += self._segment
        except StoreError as error:
            logger.warning("the history of run %s is not packed now: %s", held.run.id, error, extra=held.log_fields)
        finally:
            self._under_way = False
