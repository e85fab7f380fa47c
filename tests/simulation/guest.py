"""Clients of a world with limits and breakers, and the operator who sees to it that nothing is left at its gates."""

from __future__ import annotations

import asyncio

from perdure.client.pusher import Pusher
from perdure.client.runs.start import StartOptions
from perdure.core.limits.limit import KEYED
from perdure.core.model.run import Reason
from perdure.worker import Worker
from perdure.workflow.activity import Activity
from tests.simulation import programs
from tests.simulation.client import LOOK, Action, Operator
from tests.simulation.interpreter import BOUNDED, call_of_lined, type_of
from tests.simulation.keeper import Keeper
from tests.simulation.nemesis import LEASE
from tests.simulation.programs import KEYS

#: Limits whose concurrency the operator changes.
_TUNED = ("shared", "keyed", f"keyed{KEYED}{KEYS[0]}", "whole", "flows")
_BREAKERS = ("frail", "brittle")

#: What is to be gone when all runs are over: places, permits that count, and gates of keys.
_LEFT = f"""
SELECT 'line', gate, run_id FROM perdure_lines
UNION ALL
SELECT 'permit', p.gate, p.run_id FROM perdure_permits p JOIN perdure_runs r ON r.id = p.run_id
WHERE r.status NOT IN ('completed', 'failed', 'cancelled')
UNION ALL
SELECT 'gate', name, '' FROM perdure_gates WHERE name LIKE '%{KEYED}%' AND override = ''
"""


class Guest(Keeper):
    """A client who starts what has to wait in lines, works on runs itself, and now and then changes what is allowed."""

    _pusher: Pusher | None = None

    @property
    def worker(self) -> Worker | None:
        """As which it works on runs."""
        return None if self._pusher is None else self._pusher._latest

    def _kinds(self) -> tuple[tuple[Action, int], ...]:
        return (
            *super()._kinds(),
            (self._line_up, 10), (self._crowd, 3), (self._begin_bounded, 6), (self._tune, 2), (self._trip, 2),
            (self._if_there(self._execute), 4),
        )  # fmt: skip

    async def _line_up(self, name: str) -> None:
        lined = self._author.lined()
        self._ledger.sometimes["a call had gates of its own"] += lined.given
        activity, guards = self._engine.workflows[type_of(lined)], self._author.guards
        assert isinstance(activity, Activity)
        assert guards is not None
        call = call_of_lined(activity, guards, lined)
        options = StartOptions(id=name, priority=self._rng.choice((0, 0, 1)))
        self._ledger.asked.add(name)
        run = await self._persist(lambda: self._engine.start(call, **options))
        self._ledger.started.add(run.id)
        self._runs.append(run)

    async def _crowd(self, name: str) -> None:
        """Several at once."""
        for number in range(self._rng.randint(2, 6)):
            await self._line_up(f"{name}.{number}")

    async def _begin_bounded(self, name: str) -> None:
        call = self._engine.workflows[BOUNDED](self._rng.choice(KEYS), programs.encode(self._author.program()))
        self._ledger.asked.add(name)
        run = await self._persist(lambda: self._engine.start(call, id=name))
        self._ledger.started.add(run.id)
        self._runs.append(run)

    async def _execute(self, name: str) -> None:
        pusher = self._pusher = self._pusher or Pusher(self._engine, lease=LEASE, grace=1.0)
        run = self._rng.choice(self._runs)
        timeout = self._rng.choice((None, 0.5, 5.0))
        done = await self._persist(lambda: pusher.execute(run.id, timeout=timeout))
        self._ledger.note(name, "executed", run.id, done.state, done.worked)
        self._ledger.sometimes["a run was worked on because its id was given"] += done.worked
        self._ledger.sometimes["a run whose id was given stood in line"] += done.reason == Reason.LIMIT

    async def _tune(self, name: str) -> None:
        limits, limit = self._engine.limits, self._rng.choice(_TUNED)
        concurrency = self._rng.choice((None, 1, 3))
        self._ledger.note(name, "tunes", limit, concurrency)
        if concurrency is None:
            await self._persist(lambda: limits.clear(limit))
        else:
            await self._persist(lambda: limits.set(limit, concurrency=concurrency))

    async def _trip(self, name: str) -> None:
        breakers, breaker = self._engine.breakers, self._rng.choice(_BREAKERS)
        change = self._rng.choice((breakers.open, breakers.close, breakers.reset, breakers.reset))
        self._ledger.note(name, "trips", breaker, change.__name__)
        await self._persist(lambda: change(breaker))


class Porter(Operator):
    """Sees to the gates as well."""

    async def see_to_the_end(self, bound: float) -> None:
        """Leave no breaker open by hand, wait for every run, and then until nothing is left at the gates."""
        for breaker in _BREAKERS:
            await self._engine.breakers.reset(breaker)
        await super().see_to_the_end(bound)
        loop = asyncio.get_running_loop()
        until = loop.time() + bound
        while left := await self._store.query(_LEFT):
            if loop.time() > until:
                self._ledger.violated(f"{bound:g} s after the end of all runs this is left at the gates: {left}")
            await asyncio.sleep(LOOK)  # simulated time
