"""Reading what came in for the runs at hand, page after page.

However much waits in an inbox, a page of it is read when the one before has been handed to the run; what that takes in at once
needs no memory. A run that cannot take anything in just now reads on when it can.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from perdure.core.errors import StoreError
from perdure.core.model import Message
from perdure.core.system import System
from perdure.store.protocol import Store
from perdure.worker.kept import Kept
from perdure.worker.stage import Stage

logger = logging.getLogger("perdure.worker")


class Inboxes:
    """See the module."""

    def __init__(self, store: Store, system: System, spawn: Callable[[Coroutine[Any, Any, None], str], None]) -> None:
        self._store = store
        self._system = system
        self._spawn = spawn
        #: Runs whose inboxes are being read, and whether somebody has asked for more since.
        self._reading: dict[Kept, bool] = {}

    def hand_over(self, held: Kept, entries: list[Message]) -> None:
        """Give a run what was read for it. From a plain callback of the loop."""
        held.receive(entries)
        if self.is_full(entries):
            self.read(held)

    def is_full(self, entries: list[Message]) -> bool:
        """Whether there may be more behind them."""
        return len(entries) >= self._store.inbox_page

    def read(self, held: Kept) -> None:
        """Read what lies behind all that the run knows of."""
        if held in self._reading:
            self._reading[held] = True
            return
        self._reading[held] = False
        self._spawn(self._read(held), f"perdure inbox {held.run.id}")

    async def _read(self, held: Kept) -> None:
        try:
            while held.stage in (Stage.ACTIVE, Stage.SEALED):
                self._reading[held] = False
                before = held.looked
                try:
                    entries = await self._store.inbox(held.run.id, before, self._store.inbox_page)
                except StoreError as error:
                    logger.warning("cannot read the inbox of run %s, trying again: %s", held.run.id, error)
                    await self._system.sleep(0.2)
                    continue
                await _give(held, entries)
                more = self._reading[held] or (self.is_full(entries) and held.looked > before)
                if not more:
                    return
        finally:
            del self._reading[held]


async def _give(held: Kept, entries: list[Message]) -> None:
    loop = asyncio.get_running_loop()
    given: asyncio.Future[None] = loop.create_future()

    def give() -> None:
        held.receive(entries)
        if not given.done():
            given.set_result(None)

    loop.call_soon(give)
    await given
