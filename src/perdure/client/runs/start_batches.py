"""Starts of one process that share commits, as turns do.

While as many creations are in progress as the store can use at a time, further starts of the event loop wait; the
first of those leads the next batch. Nothing waits while the store is idle, so that a single start is as fast as ever.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from perdure.core.model.run import CreatedRun, NewRun
from perdure.errors import StoreUnavailable
from perdure.store.contract import Store
from perdure.store.sql.runs.create import is_single

#: Maximum number of starts in one transaction.
LARGEST = 500


class _WaitingStart:
    """A start that waits for a batch: for its answer, to lead the next batch, or to be tried alone."""

    def __init__(self, run: NewRun, loop: asyncio.AbstractEventLoop) -> None:
        self.run = run
        #: None: this one leads the next batch. An empty list: the batch failed, and each is tried alone.
        self.word: asyncio.Future[CreatedRun | list[CreatedRun] | None] = loop.create_future()

    @property
    def is_leader(self) -> bool:
        """True if it was told to lead, even if its task has been cancelled since."""
        word = self.word
        return word.done() and not word.cancelled() and word.exception() is None and word.result() is None


class _StartQueue:
    """Starts of one actor in one event loop."""

    def __init__(self) -> None:
        self.running = 0
        self._waiting: deque[_WaitingStart] = deque()

    def join(self, run: NewRun) -> _WaitingStart:
        """Wait behind the others."""
        waiting = _WaitingStart(run, asyncio.get_running_loop())
        self._waiting.append(waiting)
        return waiting

    def take(self) -> list[_WaitingStart]:
        """Return those that share the batch of the one that leads it."""
        taken: list[_WaitingStart] = []
        while self._waiting and len(taken) < LARGEST - 1:
            one = self._waiting.popleft()
            if not one.word.done():
                taken.append(one)
        return taken

    def pass_on(self) -> None:
        """End a creation: the first that waits leads the next."""
        while self._waiting:
            one = self._waiting.popleft()
            if not one.word.done():
                one.word.set_result(None)
                return
        self.running -= 1


#: One transaction names one actor in the audit trail.
_QueueKey = tuple[asyncio.AbstractEventLoop, str]


class StartBatches:
    """Creates single runs, those of one event loop and one actor together."""

    def __init__(self, connect: Callable[[], Awaitable[Store]]) -> None:
        self._connect = connect
        self._queues: dict[_QueueKey, _StartQueue] = {}

    async def create(self, run: NewRun, actor: str) -> CreatedRun:
        """Create a run, or find the one that is there."""
        store = await self._connect()
        if run.attributes or is_single(run):
            # These need more than one statement, which would slow down the others.
            return await _create_alone(store, run, actor)
        loop = asyncio.get_running_loop()
        key = (loop, actor)
        queue = self._queues.get(key) or self._queues.setdefault(key, _StartQueue())
        if queue.running < store.lanes:
            queue.running += 1
            return await self._lead(key, queue, store, run, [])
        waiting = queue.join(run)
        try:
            word = await waiting.word
        except asyncio.CancelledError:
            if waiting.is_leader:
                self._pass_on(key, queue)
            raise
        if word is None:
            return await self._lead(key, queue, store, run, queue.take())
        return word if isinstance(word, CreatedRun) else await _create_alone(store, run, actor)

    async def _lead(
        self, key: _QueueKey, queue: _StartQueue, store: Store, run: NewRun, others: list[_WaitingStart]
    ) -> CreatedRun:
        actor = key[1]
        try:
            mine, *theirs = await store.create([run, *(one.run for one in others)], actor)
        except BaseException as error:
            for one in others:
                if one.word.done():
                    continue
                if isinstance(error, StoreUnavailable):
                    one.word.set_exception(error)
                else:
                    # Another start may be to blame, or only the task of this one was cancelled.
                    one.word.set_result([])
            if others and isinstance(error, Exception) and not isinstance(error, StoreUnavailable):
                return await _create_alone(store, run, actor)
            raise
        else:
            for one, answer in zip(others, theirs, strict=True):
                if not one.word.done():
                    one.word.set_result(answer)
            return mine
        finally:
            self._pass_on(key, queue)

    def _pass_on(self, key: _QueueKey, queue: _StartQueue) -> None:
        queue.pass_on()
        if queue.running == 0:
            self._queues.pop(key, None)


async def _create_alone(store: Store, run: NewRun, actor: str) -> CreatedRun:
    [created] = await store.create([run], actor)
    return created
