"""The heartbeat: renews a worker's lease from a thread and event loop of its own.

So a busy main loop does not cost the lease. The heartbeat also watches the main loop: one that stays blocked does no
work, so the heartbeat stops and other workers take the runs.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import traceback
from collections.abc import Callable

from perdure.core.background_loops import LoopGuard, LoopHealth
from perdure.core.model.worker_info import HeartbeatResult
from perdure.core.printed_text import log_with_trace
from perdure.core.system import Background, System
from perdure.errors import StoreError
from perdure.store.contract import Store
from perdure.worker.loop_watch import without_collection

logger = logging.getLogger("perdure.worker")

#: Share of the lease after which nothing new begins without another heartbeat.
SAFE_SHARE = 0.8
#: Shares of the lease: between two heartbeats, as the timeout of one, and before a failed one is repeated.
INTERVAL_SHARE = 1 / 3
PATIENCE_SHARE = 1 / 3
AGAIN_SHARE = 1 / 20


class Heartbeat:
    """Heartbeat of one life of a worker."""

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
        on_drain: Callable[[], None],
        running: Callable[[], str | None],
    ) -> None:
        self._store = store
        self._system = system
        self._worker_id = worker_id
        self._lease = lease
        self._health = health
        self._guard = LoopGuard("heartbeat", system, health, logger)
        #: Health as it was last written, so that a healthy worker writes nothing.
        self._reported = (0, "")
        # The main loop is asked once per heartbeat, so with a long lease a short limit could not be met.
        self._stall_limit = max(stall_limit, lease)
        self._on_dead = on_dead
        #: Called on the main loop while an operator's order to drain stands.
        self._on_drain = on_drain
        #: Returns the steps that have been under way for a while. Called from the heartbeat's thread.
        self._running = running
        self._loop = asyncio.get_running_loop()
        #: Time until which the lease allows to begin something new.
        self.safe_until = system.monotonic() + lease * SAFE_SHARE
        #: Time at which the main loop was asked; None if it has answered. A suspended process is not asked.
        self._asked: float | None = None
        self._background: Background | None = None

    def start(self) -> None:
        """Start the heartbeat."""
        self._background = self._system.background(self._beat, "perdure heartbeat")

    async def stop(self) -> None:
        """Stop the heartbeat."""
        if self._background is not None:
            await self._background.stop()

    def is_safe(self) -> bool:
        """True if the lease was renewed recently enough to begin something new."""
        return self._system.monotonic() < self.safe_until

    async def renew(self) -> None:
        """Renew the lease now, after the process was suspended for example."""
        before = self._system.monotonic()
        answer = await self._store.heartbeat(self._worker_id, self._running())
        if not answer:
            self._on_dead()
            return
        self.safe_until = before + self._lease * SAFE_SHARE
        if answer is HeartbeatResult.DRAIN:
            self._on_drain()

    async def _beat(self) -> None:
        share = INTERVAL_SHARE
        while not self._stalled():
            if self._asked is None:
                self._asked = self._system.monotonic()
                if not self._call_main_loop(self._answered):
                    return
            await self._system.sleep(self._lease * share * (0.9 + 0.2 * self._system.random()))
            share = INTERVAL_SHARE
            before = self._system.monotonic()
            try:
                # A connection may be dead without notice; another one may still be in time.
                async with asyncio.timeout(self._lease * PATIENCE_SHARE):
                    answer = await self._store.heartbeat(self._worker_id, self._running())
            except (StoreError, TimeoutError) as error:
                logger.warning("heartbeat of worker %s failed: %s", self._worker_id, str(error) or "no answer")
                share = AGAIN_SHARE
                continue
            except Exception as error:
                self._guard.failed(error)
                share = AGAIN_SHARE
                continue
            if not answer:
                break
            self.safe_until = before + self._lease * SAFE_SHARE
            if answer is HeartbeatResult.DRAIN and not self._call_main_loop(self._on_drain):
                return
            await self._report()
        # A blocked loop learns of it when it is free again; by then other workers have its runs.
        self._call_main_loop(self._on_dead)

    async def _report(self) -> None:
        """Write the number of errors if it has changed."""
        said = self._health.total, self._health.problem or self._health.latest
        if said == self._reported:
            return
        try:
            async with asyncio.timeout(self._lease * PATIENCE_SHARE):
                await self._store.report_health(self._worker_id, *said)
        except Exception as error:
            # Counting this error would cause another report.
            logger.warning("the health of worker %s was not written: %s", self._worker_id, str(error) or "no answer")
        else:
            self._reported = said

    def _call_main_loop(self, callback: Callable[[], object]) -> bool:
        """Call back on the main loop; False if that loop is closed."""
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError:
            return False
        return True

    def _answered(self) -> None:
        self._asked = None

    def _stalled(self) -> bool:
        asked = self._asked
        silent = 0.0 if asked is None else self._system.monotonic() - asked
        if silent < self._stall_limit:
            return False
        with without_collection():
            frames = sys._current_frames()
        stacks = "".join("".join(traceback.format_stack(frame)) for frame in frames.values())
        log_with_trace(
            logger,
            logging.CRITICAL,
            f"Stacks of all threads (most recent call last):\n{stacks}",
            "the event loop of worker %s has been blocked for %.0f s; its heartbeat stops and its runs go to others; "
            "put blocking code in a sync step, which runs in a thread",
            *(self._worker_id, silent),
            extra={"worker": self._worker_id},
        )
        return True
