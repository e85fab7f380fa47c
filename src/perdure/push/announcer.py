"""Enqueueing of runs that this process makes ready, after the commit.

These are new runs, runs that were sent a message, resumed, woken or retried, and the next in line where this process
has released a permit. `Pusher.due` finds runs that were lost between a commit and the queue. A run that is enqueued
twice is worked on once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from perdure.client.engine import Engine
from perdure.client.session import session_of
from perdure.core.audit import NEXT
from perdure.push.message import QueueMessage
from perdure.store.contract import NewEvent

logger = logging.getLogger("perdure.push")

#: Kinds of events after which a run may be ready.
_READY = frozenset({
    "created", "sent", "cancel_requested", "resumed", "woken", "unblocked", "reopened", "requeued", "recovered",
    "reclaimed", "forked", NEXT,
})  # fmt: skip


class Announcer:
    """Enqueues runs as this process makes them ready.

    Use it as an async context manager, around `engine.start` and the like.
    """

    def __init__(self, engine: Engine, enqueue: Callable[[QueueMessage, float], Awaitable[object]]) -> None:
        self._session = session_of(engine)
        self._enqueue = enqueue
        self._loop: asyncio.AbstractEventLoop | None = None
        self._unsubscribe: Callable[[], None] | None = None
        #: An ordered set: a run that is announced twice before it is enqueued is enqueued once.
        self._waiting: dict[str, None] = {}
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Announcer:
        self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def start(self) -> None:
        """Begin to listen. A second call does nothing."""
        if self._unsubscribe is None:
            self._loop = asyncio.get_running_loop()
            self._unsubscribe = self._session.store.observe_events(self._heard)

    async def stop(self) -> None:
        """Enqueue the runs announced so far, and stop listening."""
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None
        # Let callbacks run that another thread has just scheduled.
        await self._session.system.sleep(0)
        if self._task is not None:
            await asyncio.wait([self._task])

    def _heard(self, lines: Sequence[NewEvent]) -> None:
        ready = [run_id for run_id, _, kind, _, _ in lines if kind in _READY]
        if ready and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._add, ready)

    def _add(self, ready: Sequence[str]) -> None:
        self._waiting.update(dict.fromkeys(ready))
        if self._task is None:
            self._task = self._session.system.spawn(self._run(), "perdure announcer")

    async def _run(self) -> None:
        while self._waiting:
            run_id = next(iter(self._waiting))
            del self._waiting[run_id]
            now = self._session.system.now() // 1000
            try:
                await self._enqueue(QueueMessage(run_id=run_id, enqueued_at=now), 0.0)
            except Exception as error:
                logger.warning("run %s is ready and could not be enqueued; `due` will find it: %s", run_id, error)
        self._task = None
