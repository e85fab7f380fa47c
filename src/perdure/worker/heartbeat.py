"""The heartbeat: one row, renewed from a thread and loop of its own, so that a busy main loop does not cost the lease.

It also watches that main loop. One that stays blocked is no longer working, so the heart stops and lets others take the runs.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import traceback
from collections.abc import Callable

from perdure.core.background_loops import LoopGuard, LoopHealth
from perdure.core.system import Background, System
from perdure.errors import StoreError
from perdure.store.contract import Store

logger = logging.getLogger("perdure.worker")

#: The part of the lease after which nothing new is begun without a fresh heartbeat.
SAFE_SHARE = 0.8
#: The part of the lease between two heartbeats, that one may take, and after which one that failed is tried again.
INTERVAL_SHARE = 1 / 3
PATIENCE_SHARE = 1 / 3
AGAIN_SHARE = 1 / 20


class Heartbeat:
    """Beats for one life of a worker."""

    def __init__(
        self,
        store: Store,
        system: System,
        worker_id: str,
        *,
        lease: float,
        stall_limit: float,
        health: LoopHealth,
        on_dead: Callable[[], None],
    ) -> None:
        self._store = store
        self._system = system
        self._worker_id = worker_id
        self._lease = lease
        self._health = health
        self._guard = LoopGuard("heartbeat", system, health, logger)
        #: What was last written of the health, so that a healthy worker writes nothing.
        self._reported = (0, "")
        # The main loop is asked once a beat, so with a long lease it cannot have answered within a short limit.
        self._stall_limit = max(stall_limit, lease)
        self._on_dead = on_dead
        self._loop = asyncio.get_running_loop()
        self._renewed = system.monotonic()
        #: Since when the main loop owes an answer; None if it has answered. A process that was suspended owes none.
        self._asked: float | None = None
        self._background: Background | None = None

    def start(self) -> None:
        """Begin to beat."""
        self._background = self._system.background(self._beat, "perdure heartbeat")

    async def stop(self) -> None:
        """Stop beating."""
        if self._background is not None:
            await self._background.stop()

    def is_safe(self) -> bool:
        """Whether the lease was renewed lately enough to begin something new."""
        return self._system.monotonic() - self._renewed < self._lease * SAFE_SHARE

    async def renew(self) -> None:
        """Beat once more, now: a process that was suspended has not for a while."""
        before = self._system.monotonic()
        if await self._store.heartbeat(self._worker_id):
            self._renewed = before
        else:
            self._on_dead()

    async def _beat(self) -> None:
        share = INTERVAL_SHARE
        while not self._stalled():
            if self._asked is None:
                self._asked = self._system.monotonic()
                if not self._tell(self._answer):
                    return
            await self._system.sleep(self._lease * share * (0.9 + 0.2 * self._system.random()))
            share = INTERVAL_SHARE
            before = self._system.monotonic()
            try:
                # A connection may be dead without anybody having been told; another one may still be in time.
                async with asyncio.timeout(self._lease * PATIENCE_SHARE):
                    alive = await self._store.heartbeat(self._worker_id)
            except (StoreError, TimeoutError) as error:
                logger.warning("heartbeat of worker %s failed: %s", self._worker_id, str(error) or "no answer")
                share = AGAIN_SHARE
                continue
            except Exception as error:
                self._guard.failed(error)
                share = AGAIN_SHARE
                continue
            if not alive:
                break
            self._renewed = before
            await self._report()
        # A loop that is blocked hears of it when it is free again; by then others have its runs.
        self._tell(self._on_dead)

    async def _report(self) -> None:
        """Write how many errors there were, once there were any."""
        said = self._health.total, self._health.problem or self._health.latest
        if said == self._reported:
            return
        try:
            async with asyncio.timeout(self._lease * PATIENCE_SHARE):
                await self._store.report_health(self._worker_id, *said)
        except Exception as error:
            # Counting it would make another report necessary.
            logger.warning("the health of worker %s was not written: %s", self._worker_id, str(error) or "no answer")
        else:
            self._reported = said

    def _tell(self, callback: Callable[[], object]) -> bool:
        """Call back on the main loop; False if that is gone, and with it everybody who would work."""
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError:
            return False
        return True

    def _answer(self) -> None:
        self._asked = None

    def _stalled(self) -> bool:
        asked = self._asked
        silent = 0.0 if asked is None else self._system.monotonic() - asked
        if silent < self._stall_limit:
            return False
        stacks = "".join("".join(traceback.format_stack(frame)) for frame in sys._current_frames().values())
        logger.critical(
            "the event loop of worker %s has been blocked for %.0f s; its heartbeat stops and its runs go to others. "
            "Blocking code belongs into a sync step, which runs in a thread. Stacks:\n%s",
            self._worker_id, silent, stacks,
        )  # fmt: skip
        return True
