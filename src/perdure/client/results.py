"""Waiting for runs to finish: one look at the database for everybody who waits, when something has changed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from types import TracebackType
from typing import Any, TypeVar

from perdure.core.background_loops import LoopGuard, LoopHealth
from perdure.core.model.run import Reason, Run, Status
from perdure.core.system import System
from perdure.core.time.duration import Duration, seconds
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
        self._guard = LoopGuard("waiting for results", system, LoopHealth(), logger)
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


T = TypeVar("T")

SHORTEST_POLL = 0.005
#: So that whoever waits learns soon that the engine was closed.
LONGEST_POLL = 2.0


async def within(
    system: System, work: Callable[[], Coroutine[Any, Any, T]], name: str, timeout: Duration | None, too_late: str
) -> T:
    """Do something, or raise `TimeoutError` after `timeout` on the system's clock."""
    limit = None if timeout is None else seconds(timeout)
    waiting = system.spawn(work(), name)
    timer = None if limit is None else system.call_later(limit, waiting.cancel)
    try:
        return await waiting
    except asyncio.CancelledError:
        current = asyncio.current_task()
        if timeout is None or (current is not None and current.cancelling()):
            waiting.cancel()
            raise
        raise TimeoutError(f"{too_late} within {timeout!r}") from None
    finally:
        if timer is not None:
            timer.cancel()


class News:
    """Says when it is worth looking again at what a run shows: something was shown or has finished, here or elsewhere."""

    def __init__(self, store: Store, system: System) -> None:
        self._store = store
        self._system = system
        self._loop = asyncio.get_running_loop()
        self._rung: asyncio.Future[bool] | None = None
        self._told = False
        self._replaced = False
        self._poll = SHORTEST_POLL
        self._unsubscribe = store.subscribe(self._on_change)

    def __enter__(self) -> News:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._unsubscribe()

    def found(self) -> None:
        """Something was there, so that there may be more soon."""
        self._poll = SHORTEST_POLL

    def replaced(self) -> bool:
        """Whether the database was replaced since this was asked last, and may lack what was seen or sent."""
        replaced, self._replaced = self._replaced, False
        return replaced

    async def arrive(self) -> None:
        """Wait. Looking before is safe: what came meanwhile counts."""
        while not self._told:
            if not await self._ring_or_timeout():
                try:
                    # Whoever rings meanwhile is not to be overruled.
                    if await self._store.changed():
                        self._told = True
                except StoreError:
                    self._told = True
            self._poll = min(1.5 * self._poll, self._store.poll_interval, LONGEST_POLL)
        self._told = False

    async def _ring_or_timeout(self) -> bool:
        rung: asyncio.Future[bool] = self._loop.create_future()
        self._rung = rung
        timer = self._system.call_later(self._poll, lambda: self._wake(told=False))
        try:
            return await rung
        finally:
            timer.cancel()
            self._rung = None

    def _on_change(self, change: Change) -> None:
        if change & Change.REPLACED:
            self._replaced = True
        if change & (Change.OUTPUT | Change.FINISHED | Change.REPLACED) and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._ring)

    def _ring(self) -> None:
        self._told = True
        self._wake(told=True)

    def _wake(self, *, told: bool) -> None:
        if self._rung is not None and not self._rung.done():
            self._rung.set_result(told)


#: Seconds after which the log says why.
SLOW = 5.0
#: Explanations under way at a time, and the seconds that one may take when a wait has ended.
AT_ONCE = 10
LAST_LOOK = 2.0

logger = logging.getLogger("perdure.client")


class Overdue:
    """The waits of one engine. `look` gives a run and why it is where it is."""

    def __init__(self, system: System, look: Callable[[str], Awaitable[tuple[Run, str]]]) -> None:
        self._system = system
        self._look = look
        self._explaining = 0

    async def wait(
        self,
        run_id: str,
        work: Callable[[], Coroutine[Any, Any, T]],
        name: str,
        timeout: Duration | None,
        too_late: str,
    ) -> T:
        """Wait for something of a run. Raises `TimeoutError`, which says why, after `timeout`."""
        explaining: list[asyncio.Task[None]] = []

        def explain() -> None:
            if self._explaining < AT_ONCE:
                self._explaining += 1
                task = self._system.spawn(self._explain(run_id, too_late), f"perdure why {run_id}")
                task.add_done_callback(self._explained)
                explaining.append(task)

        timer = self._system.call_later(SLOW, explain)
        try:
            return await within(self._system, work, name, timeout, too_late)
        except TimeoutError as late:
            raise TimeoutError(f"{late}{await self._because(run_id)}") from None
        finally:
            timer.cancel()
            for task in explaining:
                task.cancel()

    def _explained(self, _: asyncio.Task[None]) -> None:
        # A task that is cancelled before it begins ends, too.
        self._explaining -= 1

    async def _explain(self, run_id: str, what: str) -> None:
        try:
            run, why = await self._look(run_id)
        except PerdureError as error:
            logger.warning("%s within %g s, and the database does not say why: %s", what, SLOW, error)
            return
        if not run.status.finished:
            logger.log(_level(run), "%s within %g s: %s", what, SLOW, why)

    async def _because(self, run_id: str) -> str:
        """The sentence for an error; nothing if the database does not answer soon."""
        try:
            _, why = await within(self._system, lambda: self._asked(run_id), "perdure why", LAST_LOOK, "no answer")
        except (PerdureError, TimeoutError):
            return ""
        return f": {why.removesuffix('.')}"

    async def _asked(self, run_id: str) -> tuple[Run, str]:
        return await self._look(run_id)


def _level(run: Run) -> int:
    """A run that is worked on, or waits for what its code asked for, is no reason to worry."""
    stands = run.status in (Status.PENDING, Status.BLOCKED) or run.reason is Reason.PAUSED
    return logging.WARNING if stands else logging.INFO
