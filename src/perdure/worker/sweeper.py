"""Looking after what nobody holds: runs of dead workers, and runs past their deadline. Every worker does it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from perdure.core.audit import EventFilter
from perdure.core.background_loops import LoopGuard, LoopHealth
from perdure.core.model.run import Run
from perdure.core.model.turn import Finish, NextState
from perdure.core.policy.retention import PruneRequest, Retention
from perdure.core.policy.singleton import stored_singleton_of
from perdure.core.system import System
from perdure.errors import StoreError
from perdure.store.contract import Store

logger = logging.getLogger("perdure.worker")

#: Runs given back in one transaction.
BATCH = 500
#: One in so many sweeps forgets what nobody uses.
_FORGETS_EVERY = 8


class Sweeper:
    """Sweeps about twice a lease; `beside` is called as often."""

    def __init__(
        self,
        store: Store,
        system: System,
        lease: float,
        beside: Callable[[], object],
        health: LoopHealth,
        retention: Retention | None = None,
    ) -> None:
        self._guard = LoopGuard("sweeper", system, health, logger)
        self._guard_pruner = LoopGuard("retention", system, health, logger)
        self._guard_succession = LoopGuard("succession", system, health, logger)
        self._store = store
        self._system = system
        self._lease = lease
        self._beside = beside
        self._pruner = None if retention is None else RetentionPruner(store, system, retention)
        self._tasks: list[asyncio.Task[None]] = []
        self._sweeps = 0
        self._succession: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to sweep."""
        self._tasks.append(self._system.spawn(self._guard.keep_going(self._run), "perdure sweeper"))
        if self._pruner is not None:
            self._tasks.append(self._system.spawn(self._guard_pruner.keep_going(self._pruner.run), "perdure aging"))

    async def stop(self) -> None:
        """Stop sweeping."""
        tasks, self._tasks = self._tasks, []
        if self._succession is not None:
            tasks.append(self._succession)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _run(self) -> None:
        while True:
            swept = await self._store.sweep(BATCH)
            self._guard.succeeded()
            for worker in swept.dead_workers:
                logger.warning("worker %s is dead; its runs are given to others", worker)
            # One that died with nothing in its hands may have died before it could say what it had let go of.
            if swept.released or swept.expired or swept.dead_workers:
                await self._make_room()
            self._look_after(swept.successions)
            if swept.more:
                await self._system.sleep(0)
                continue
            self._beside()
            await self._forget_gates()
            await self._system.sleep(self._lease / 2 * (0.8 + 0.4 * self._system.random()))

    def _look_after(self, names: Sequence[str]) -> None:
        """Let the next ones begin. Beside the sweep: somebody's transaction may have one locked, and for long."""
        if names and (self._succession is None or self._succession.done()):
            self._succession = self._system.spawn(self._succeed(names), "perdure successions")

    async def _succeed(self, names: Sequence[str]) -> None:
        for name in names:
            try:
                await start_successors([name], self._store, "sweep")
            except Exception as error:
                # The next sweep finds this one again; the others need not wait for it.
                await self._system.sleep(self._guard_succession.failed(error))

    async def _forget_gates(self) -> None:
        """Now and then, and a full batch is followed by another one with the next sweep."""
        self._sweeps += 1
        if self._sweeps % _FORGETS_EVERY:
            return
        try:
            if await self._store.forget_gates(BATCH, "sweep") == BATCH:
                self._sweeps -= 1
        except StoreError as error:
            logger.warning("gates of keys that nobody uses are kept a little longer: %s", error)

    async def _make_room(self) -> None:
        """What is not worked on any more may have kept others from passing their gates."""
        try:
            await self._store.stir_gates("sweep")
        except StoreError as error:
            logger.warning("gates are looked at a little later: %s", error)


#: Runs looked at, and events deleted, in one transaction; and the time to leave to others in between, in seconds.
RUNS = 100
EVENTS = 1000
PAUSE = 0.05
#: How long, in seconds, a worker mostly leaves between two looks, and after how many of them it looks at everything again.
LOOK = 600.0
ALL_AGAIN = 144


class RetentionPruner:
    """Keeps what the retention says, and no more."""

    def __init__(self, store: Store, system: System, retention: Retention) -> None:
        self._store = store
        self._system = system
        self._retention = retention
        #: By rule, where it goes on.
        self._places: dict[int, str | None] = {}
        self._looks = 0

    async def run(self) -> None:
        """Look now and then, without end."""
        # The first time soon, so that workers do it that do not live for long; not at once, when all of a fleet begin.
        wait = LOOK / 10
        while True:
            await self._system.sleep(wait * (0.5 + self._system.random()))
            wait = LOOK
            await self.look()

    async def look(self) -> int:
        """Delete what is old by now; how many runs that were."""
        if self._looks % ALL_AGAIN == 0:
            self._places.clear()
        self._looks += 1
        now, runs = self._store.clock(), 0
        for number, rule in enumerate(self._retention.rules(now)):
            runs += await self._prune(number, rule)
        if runs:
            logger.info("deleted %d runs that were over for long enough", runs)
        oldest = self._retention.oldest_event(now)
        if oldest is not None:
            await forget_events(self._store, oldest, "retention")
        return runs

    async def _prune(self, number: int, rule: PruneRequest) -> int:
        runs = 0
        while True:
            batch = await self._store.prune(rule, RUNS, self._places.get(number), "retention")
            runs += batch.runs
            if batch.cursor is None:
                return runs
            self._places[number] = batch.cursor
            await self._system.sleep(PAUSE)


async def forget_events(store: Store, before: int, actor: str) -> int:
    """Delete events from before a time, oldest first, in small transactions; how many there were."""
    deleted, last = 0, 0
    while page := await store.events_page(EventFilter(), EVENTS, after=last):
        # The newest of all stays: numbers must not be given a second time, and some databases count from what is there.
        page = page if len(page) == EVENTS else page[:-1]
        old = [event for event in page if event.at < before]
        if not old:
            break
        last = page[-1].id
        await store.forget_events(last, before, actor)
        deleted += len(old)
    return deleted


def singleton_freed_by(run: Run, after: NextState | None) -> str | None:
    """The singleton whose next run may begin, now that this one has been left so."""
    if run.options == "{}" or not isinstance(after, Finish):
        return None
    single = stored_singleton_of(run.options)
    return None if single is None else single.name


async def start_successors(names: Sequence[str], store: Store, actor: str) -> None:
    """Let the next ones begin."""
    try:
        await store.succeed(names, actor)
    except StoreError as error:
        logger.warning("cannot look after %s; the next sweep will: %s", ", ".join(names), error)
