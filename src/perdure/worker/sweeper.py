"""Maintenance that every worker does: dead workers, expired runs, successors of singletons, retention.

A sweep is the fallback for what workers do right after a commit. A worker that dies, or loses its database, before it
has started the next run of a singleton leaves that to the next sweep. Retention runs at random times, so that mostly
one worker of a fleet does it; two do not disturb each other. Each rule goes on where it stopped, and once a day starts
again with what it passed over.
"""

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
#: Seconds after the end of a lease within which the worker is declared dead.
_LATEST = 0.5
#: One in so many sweeps deletes gates that are not used any more.
_FORGETS_EVERY = 8


class Sweeper:
    """Sweeps about twice per lease, and when a lease ends; `beside` is called as often."""

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
        """Start to sweep."""
        self._tasks.append(self._system.spawn(self._guard.keep_going(self._run), "perdure sweeper"))
        if self._pruner is not None:
            self._tasks.append(self._system.spawn(self._guard_pruner.keep_going(self._pruner.run), "perdure retention"))

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
            if (tell := self._system.telemetry.swept) is not None:
                tell(swept)
            for worker in swept.dead_workers:
                logger.warning("worker %s is dead; its runs are given to others", worker)
            # A worker that died without runs may have died before it reported the permits that it had released.
            if swept.released or swept.expired or swept.dead_workers:
                await self._admit_waiting()
            self._start_next(swept.successions)
            if swept.more:
                await self._system.sleep(0)
                continue
            self._beside()
            await self._delete_unused_gates()
            await self._system.sleep(self._pause(swept.lease_ends_in))

    def _pause(self, lease_ends_in: int | None) -> float:
        """Return the seconds until the next sweep: half a lease, or until the lease of a worker has just ended.

        Heartbeats renew leases long before that, so that only a worker that is silent causes a sweep more.
        """
        random = self._system.random()
        usual = self._lease / 2 * (0.8 + 0.4 * random)
        if lease_ends_in is None:
            return usual
        # A fleet does not sweep all at once.
        return min(usual, lease_ends_in / 1e6 + min(_LATEST, self._lease / 20) * (0.2 + 0.8 * random))

    def _start_next(self, names: Sequence[str]) -> None:
        """Start the next runs of singletons, beside the sweep: a transaction may have one locked, and for long."""
        if names and (self._succession is None or self._succession.done()):
            self._succession = self._system.spawn(self._start_each(names), "perdure successions")

    async def _start_each(self, names: Sequence[str]) -> None:
        for name in names:
            try:
                await start_successors([name], self._store, "sweep")
            except Exception as error:
                # The next sweep finds this one again; the others need not wait for it.
                await self._system.sleep(self._guard_succession.failed(error))

    async def _delete_unused_gates(self) -> None:
        """Delete unused gates now and then; after a full batch, with the next sweep again."""
        self._sweeps += 1
        if self._sweeps % _FORGETS_EVERY:
            return
        try:
            if await self._store.delete_idle_gates(BATCH, "sweep") == BATCH:
                self._sweeps -= 1
        except StoreError as error:
            logger.warning("unused gates are kept until the next sweep: %s", error)

    async def _admit_waiting(self) -> None:
        """Admit runs from the waitlist into the room that dead workers and expired runs have left."""
        try:
            await self._store.recheck_gates("sweep")
        except StoreError as error:
            logger.warning("gates are looked at a little later: %s", error)


#: Runs examined, and events deleted, in one transaction; pause between two of them, in seconds.
PRUNED_RUNS = 100
DELETED_EVENTS = 1000
PRUNE_PAUSE = 0.05
#: Usual time between two rounds of retention, in seconds; and rounds after which every rule starts again.
RETENTION_INTERVAL = 600.0
ROUNDS_PER_PASS = 144


class RetentionPruner:
    """Deletes finished runs and events as the engine's retention says."""

    def __init__(self, store: Store, system: System, retention: Retention) -> None:
        self._store = store
        self._system = system
        self._retention = retention
        #: By rule, the cursor at which it goes on.
        self._cursors: dict[int, str | None] = {}
        self._rounds = 0

    async def run(self) -> None:
        """Delete old runs and events now and then, without end."""
        # The first round comes soon, for workers that do not live long; not at once, when a whole fleet starts.
        wait = RETENTION_INTERVAL / 10
        while True:
            await self._system.sleep(wait * (0.5 + self._system.random()))
            wait = RETENTION_INTERVAL
            await self.prune()

    async def prune(self) -> int:
        """Delete what is old by now; return the number of runs."""
        if self._rounds % ROUNDS_PER_PASS == 0:
            self._cursors.clear()
        self._rounds += 1
        now, runs = self._store.clock(), 0
        for number, rule in enumerate(self._retention.rules(now)):
            runs += await self._prune(number, rule)
        if runs:
            logger.info("deleted %d runs that were over for long enough", runs)
        oldest = self._retention.oldest_event(now)
        if oldest is not None:
            await delete_events(self._store, oldest, "retention")
        return runs

    async def _prune(self, number: int, rule: PruneRequest) -> int:
        runs = 0
        while True:
            batch = await self._store.prune(rule, PRUNED_RUNS, self._cursors.get(number), "retention")
            runs += batch.runs
            if batch.cursor is None:
                return runs
            self._cursors[number] = batch.cursor
            await self._system.sleep(PRUNE_PAUSE)


async def delete_events(store: Store, before: int, actor: str) -> int:
    """Delete events from before a time, oldest first, in small transactions; return their number."""
    deleted, last = 0, 0
    while page := await store.events_page(EventFilter(), DELETED_EVENTS, after=last):
        # The newest event stays: its number must not be used again, and some databases count from what is there.
        page = page if len(page) == DELETED_EVENTS else page[:-1]
        old = [event for event in page if event.at < before]
        if not old:
            break
        last = page[-1].id
        await store.delete_events(last, before, actor)
        deleted += len(old)
    return deleted


def singleton_freed_by(run: Run, after: NextState | None) -> str | None:
    """Name of the singleton whose next run may begin after this run; None if there is none."""
    if run.options == "{}" or not isinstance(after, Finish):
        return None
    single = stored_singleton_of(run.options)
    return None if single is None else single.name


async def start_successors(names: Sequence[str], store: Store, actor: str) -> None:
    """Start the next runs of singletons. An error leaves that to the next sweep."""
    try:
        await store.start_successors(names, actor)
    except StoreError as error:
        logger.warning("cannot look after %s; the next sweep will: %s", ", ".join(names), error)
