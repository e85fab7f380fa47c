"""Firing schedules. Every worker does it, whatever it serves; each slot becomes one run, whoever is first.

When a schedule is due next is part of the answer to every claim, so that workers ask for nothing on its behalf until then, and of a
database without schedules never. A worker that does not claim, because it is full, looks by itself now and then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from perdure.core.background_loops import LoopGuard, LoopHealth
from perdure.core.system import System
from perdure.core.time.duration import FAR
from perdure.store.contract import Store
from perdure.worker.alarm import Alarm

logger = logging.getLogger("perdure.worker")

#: Schedules that are fired in one transaction.
BATCH = 20
#: How long to go without having heard of schedules, in seconds.
UNHEARD = 60.0
#: The clocks differ by so much at the least, in seconds: earlier is too early.
_SHORTEST = 0.001


class Scheduler:
    """Sleeps until a schedule is due."""

    def __init__(self, store: Store, system: System, actor: Callable[[], str], health: LoopHealth) -> None:
        self._store = store
        self._guard = LoopGuard("scheduler", system, health, logger)
        self._system = system
        self._actor = actor
        self._alarm = Alarm(system)
        self._due = FAR
        self._heard_at = 0.0
        self._task: asyncio.Task[None] | None = None
        self._waiting = True
        self._working = False

    @property
    def quiet(self) -> bool:
        """Whether it is only waiting."""
        return self._waiting

    def start(self) -> None:
        """Begin to look after schedules, as soon as there are any."""
        self._heard_at = self._system.monotonic()
        self._working = True

    async def stop(self) -> None:
        """Stop. What it is firing is fired whole or not at all, here or by somebody else."""
        self._working = False
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def heard(self, due: int) -> None:
        """A claim was told when a schedule is due next."""
        self._heard_at = self._system.monotonic()
        if due < self._due and self._working:
            self._expect(due)

    def look_if_unheard(self) -> None:
        """Look, if no claim has told anything for a while."""
        if self._working and self._system.monotonic() - self._heard_at >= UNHEARD:
            self._heard_at = self._system.monotonic()
            self._expect(0)

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
                await self._alarm.wait(None if self._due >= FAR else max(_SHORTEST, left))
                continue
            # What is heard of meanwhile may be newer than the answer.
            self._waiting, self._due = False, FAR
            fired = await self._store.fire(BATCH, self._actor())
            self._due = min(self._due, fired.next_due)
            self._guard.succeeded()

    async def _rest(self, seconds: float) -> None:
        await self._system.sleep(seconds)
        self._due = 0
