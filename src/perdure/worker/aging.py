"""Deleting what is old: runs that are over, by the engine's retention, and lines of the audit trail.

Each worker looks now and then, at random times of its own, so that mostly one is at it; two do not disturb each other. Each rule goes
on where it stopped: what was passed over then is looked at again once a day.
"""

from __future__ import annotations

import logging

from perdure.core.audit import EventFilter
from perdure.core.policy.retention import Prune, Retention
from perdure.core.system import System
from perdure.store.contract import Store

logger = logging.getLogger("perdure.worker")

#: Runs looked at, and events deleted, in one transaction; and the time to leave to others in between, in seconds.
RUNS = 100
EVENTS = 1000
PAUSE = 0.05
#: How long, in seconds, a worker mostly leaves between two looks, and after how many of them it looks at everything again.
LOOK = 600.0
ALL_AGAIN = 144


class Aging:
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

    async def _prune(self, number: int, rule: Prune) -> int:
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
