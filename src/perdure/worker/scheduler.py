"""Firing of schedules. Every worker does it, whatever it serves; each fire time becomes one run.

The answer to every claim contains the next fire time, so a worker queries nothing until then, and in a database without
schedules never. A worker that is full does not claim; it queries by itself now and then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from perdure.core.background_loops import Alarm, LoopGuard, LoopHealth
from perdure.core.system import System
from perdure.core.time.duration import NEVER
from perdure.store.contract import Store

logger = logging.getLogger("perdure.worker")

#: Schedules fired in one transaction.
BATCH = 20
#: Seconds without a claim after which the worker queries by itself.
QUERY_AFTER = 60.0
#: Shortest wait, in seconds: clocks differ at least by that much.
_SHORTEST = 0.001


class Scheduler:
    """Sleeps until a schedule is due, and fires it."""

    def __init__(self, store: Store, system: System, actor: Callable[[], str], health: LoopHealth) -> None:
        self._store = store
        self._guard = LoopGuard("scheduler", system, health, logger)
        self._system = system
        self._actor = actor
        self._alarm = Alarm(system)
        self._due = NEVER
        #: Time of the start, or of the last query.
        self._queried_at = 0.0
        self._task: asyncio.Task[None] | None = None
        self._waiting = True
        self._working = False

    @property
    def quiet(self) -> bool:
        """True if the scheduler is only waiting."""
        return self._waiting

    def start(self) -> None:
        """Start. There is a task only once a schedule exists."""
        self._queried_at = self._system.monotonic()
        self._working = True

    async def stop(self) -> None:
        """Stop. A transaction that is under way commits as a whole or not at all."""
        self._working = False
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def note_next_fire(self, due: int) -> None:
        """Note the next fire time, as a claim returned it."""
        if due < self._due and self._working:
            self._expect(due)

    def query_if_stale(self, claimed_at: float) -> None:
        """Query the next fire time if no claim has returned one for a while; `claimed_at`: time of the last claim."""
        now = self._system.monotonic()
        if self._working and now - max(claimed_at, self._queried_at) >= QUERY_AFTER:
            self._queried_at = now
            self._expect(0)  # equivalent: constant: any time in the past

    def _expect(self, due: int) -> None:
        self._due = due
        if due <= self._store.clock():
            self._waiting = False
        self._alarm.ring()
        if self._task is None:
            self._task = self._system.spawn(self._guard.keep_going(self._run, self._rest), "perdure scheduler")

    async def _run(self) -> None:
        while True:
            left = (self._due - self._store.clock()) / 1e6
            if left > 0:
                self._waiting = True
                await self._alarm.wait(None if self._due >= NEVER else max(_SHORTEST, left))
                continue
            # A fire time that is noted during the call may be newer than its answer.
            due, self._waiting, self._due = self._due, False, NEVER
            fired = await self._store.fire_schedules(BATCH, self._actor())
            if (tell := self._system.telemetry.schedules_fired) is not None and fired.runs:
                tell(fired.runs, due, self._store.clock())
            self._due = min(self._due, fired.next_due)
            self._guard.succeeded()

    async def _rest(self, seconds: float) -> None:
        await self._system.sleep(seconds)
        self._due = 0
