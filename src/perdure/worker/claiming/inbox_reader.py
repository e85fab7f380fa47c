"""Reader of inboxes, page by page.

The next page is read when the run has received the one before, so a long inbox needs little memory. A run that cannot
receive at the moment reads on when it can.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from perdure.core.background_loops import LoopGuard, LoopHealth
from perdure.core.model.record import Message
from perdure.core.system import System
from perdure.errors import StoreCorrupt, StoreError
from perdure.store.contract import Store
from perdure.store.sql.reads import check_counters
from perdure.worker.run.held_run import HeldRun, Stage

logger = logging.getLogger("perdure.worker")


class InboxReader:
    """Reads the inboxes of held runs."""

    def __init__(
        self,
        store: Store,
        system: System,
        spawn: Callable[[Callable[[], Coroutine[Any, Any, None]], str, HeldRun], None],
        health: LoopHealth,
    ) -> None:
        self._store = store
        self._system = system
        self._guard = LoopGuard("inbox reader", system, health, logger)
        self._spawn = spawn
        #: Runs whose inboxes are being read, and whether more was requested since.
        self._reading: dict[HeldRun, bool] = {}

    def hand_over(self, held: HeldRun, entries: list[Message]) -> None:
        """Hand entries to a run. Called from a plain callback of the loop."""
        held.receive(entries)
        if self.is_full(entries):
            self.read(held)

    def is_full(self, entries: list[Message]) -> bool:
        """True if a page is full, so that more may follow."""
        return len(entries) >= self._store.inbox_page

    def read(self, held: HeldRun) -> None:
        """Read the entries behind the last one that the run knows."""
        if held in self._reading:
            self._reading[held] = True
            return
        self._reading[held] = False
        self._spawn(lambda: self._read(held), f"perdure inbox {held.run.id}", held)

    async def _read(self, held: HeldRun) -> None:
        try:
            while held.stage in (Stage.ACTIVE, Stage.LOCKED):
                self._reading[held] = False
                before = held.inbox_known
                try:
                    entries = await self._store.inbox(held.run.id, before, self._store.inbox_page)
                    if not entries:
                        await self._check(held, before)
                except StoreCorrupt:
                    raise
                except StoreError as error:
                    await self._system.sleep(self._guard.failed(error))
                    continue
                await _give(held, entries)
                more = self._reading[held] or (self.is_full(entries) and held.inbox_known > before)
                if not more:
                    return
        finally:
            del self._reading[held]

    async def _check(self, held: HeldRun, inbox_known: int) -> None:
        """Raise `StoreCorrupt` if the run's row counts entries that do not exist: it would read for ever."""
        run = await self._store.get(held.run.id)
        if run is None or (run.token, run.nonce) != (held.lease.token, held.lease.nonce):
            return
        check_counters(run)
        if run.inbox_seq <= inbox_known:
            return
        # Entries that came in since are found by reading again, unless the run has received them meanwhile.
        if not await self._store.inbox(run.id, inbox_known, 1) and held.inbox_known == inbox_known:
            raise StoreCorrupt(
                f"the inbox of run {run.id!r} (perdure_messages) lacks entries that its row (perdure_runs.inbox_seq) "
                f"counts: the last should have number {run.inbox_seq}, but there is none after {inbox_known}; "
                "restore them from a backup, or cancel the run"
            )


async def _give(held: HeldRun, entries: list[Message]) -> None:
    loop = asyncio.get_running_loop()
    given: asyncio.Future[None] = loop.create_future()

    def give() -> None:
        held.receive(entries)
        if not given.done():
            given.set_result(None)

    loop.call_soon(give)
    await given
