"""Waiting for runs to finish: one look at the database for everybody who waits, when something has changed."""

from __future__ import annotations

import asyncio
import logging

from perdure.core.background_loops import Guard, Health
from perdure.core.model.run import Run
from perdure.core.system import System
from perdure.errors import EngineClosed, PerdureError, RunNotFound, StoreCorrupt, StoreError
from perdure.store.contract import Change, Store

logger = logging.getLogger("perdure.client")

#: Runs asked for in one query.
CHUNK = 500
SHORTEST_POLL = 0.005
#: With more waiters than one query asks for: how many times as long as a look the pause after it is, and how many seconds at the most.
PAUSES = 5
LONGEST_PAUSE = 2.0


class Watch:
    """Waiters of one event loop."""

    def __init__(self, store: Store, system: System) -> None:
        self._store = store
        self._system = system
        self._loop = asyncio.get_running_loop()
        self._guard = Guard("waiting for results", system, Health(), logger)
        self._waiters: dict[str, set[asyncio.Future[Run]]] = {}
        self._task: asyncio.Task[None] | None = None
        self._rung: asyncio.Future[bool] | None = None
        self._changed = False

    async def finished(self, run_id: str) -> Run:
        """Wait for a run's outcome."""
        future: asyncio.Future[Run] = self._loop.create_future()
        self._waiters.setdefault(run_id, set()).add(future)
        self._changed = True
        if self._task is None or self._task.done():
            self._task = self._system.spawn(self._guard.keep_going(self._run, self._rest), "perdure watch")
        else:
            self._ring()
        try:
            return await future
        finally:
            waiting = self._waiters.get(run_id)
            if waiting is not None:
                waiting.discard(future)
                if not waiting:
                    del self._waiters[run_id]

    async def close(self) -> None:
        """Stop looking; whoever still waits is told that the engine is closed."""
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])
        self._give_up(EngineClosed("the engine was closed while this waited for a result"))

    def _give_up(self, error: PerdureError) -> None:
        for waiting in list(self._waiters.values()):
            for future in waiting:
                if not future.done():
                    future.set_exception(error)

    def _miss(self, run_ids: set[str]) -> None:
        for run_id in run_ids:
            for future in self._waiters.get(run_id, ()):
                if not future.done():
                    future.set_exception(
                        RunNotFound(
                            f"run {run_id!r} is gone while its result was waited for: it was deleted, or lost with a failover"
                        )
                    )

    def _on_change(self, change: Change) -> None:
        if change & (Change.FINISHED | Change.REPLACED) and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._ring)

    def _ring(self) -> None:
        self._changed = True
        if self._rung is not None and not self._rung.done():
            self._rung.set_result(True)

    async def _run(self) -> None:
        unsubscribe = self._store.subscribe(self._on_change)
        poll = SHORTEST_POLL
        try:
            while self._waiters:
                if self._changed:
                    self._changed = False
                    begun = self._system.monotonic()
                    if await self._look():
                        poll = SHORTEST_POLL
                    await self._system.sleep(self._pause(self._system.monotonic() - begun))
                if self._waiters and not self._changed:
                    await self._wait(poll)
                    poll = min(poll * 1.5, self._store.poll_interval)
        except EngineClosed as error:
            self._give_up(error)
        finally:
            unsubscribe()

    async def _rest(self, seconds: float) -> None:
        await self._system.sleep(seconds)
        self._changed = True

    def _pause(self, look: float) -> float:
        """For how long not to look again, though something may change: with very many waiters a look takes time.

        Every run that is waited for is looked at each time, so that looks without a pause would cost the square of their number.
        """
        waiters = len(self._waiters)
        return min(0.1, waiters * 5e-6) if waiters <= CHUNK else min(LONGEST_PAUSE, PAUSES * look)

    async def _wait(self, seconds: float) -> None:
        self._rung = self._loop.create_future()
        timer = self._system.call_later(seconds, self._time_out)
        try:
            if not await self._rung and await self._store.changed():
                self._changed = True
        except StoreError:
            self._changed = True
        finally:
            timer.cancel()
            self._rung = None

    def _time_out(self) -> None:
        if self._rung is not None and not self._rung.done():
            self._rung.set_result(False)

    async def _look(self) -> bool:
        """Hand out the results that are there; whether there were any."""
        found = False
        ids = list(self._waiters)
        for start in range(0, len(ids), CHUNK):
            chunk = ids[start : start + CHUNK]
            runs, unreadable = await self._get(chunk)
            for run in runs:
                if run.status.finished:
                    found = True
                    for future in self._waiters.get(run.id, ()):
                        if not future.done():
                            future.set_result(run)
            self._miss(set(chunk) - {run.id for run in runs} - unreadable)
        self._guard.succeeded()
        return found

    async def _get(self, run_ids: list[str]) -> tuple[list[Run], set[str]]:
        """The runs that are there, and which could not be read, so that a wait for one of those is told so."""
        try:
            return await self._store.get_many(run_ids), set()
        except StoreCorrupt as error:
            if len(run_ids) == 1:
                for future in self._waiters.get(run_ids[0], ()):
                    if not future.done():
                        future.set_exception(error)
                return [], set(run_ids)
        runs: list[Run] = []
        unreadable: set[str] = set()
        for run_id in run_ids:
            found, not_read = await self._get([run_id])
            runs += found
            unreadable |= not_read
        return runs, unreadable
