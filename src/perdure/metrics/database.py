"""Readings of the database for the whole fleet: queues, limits, breakers and dead letters.

A scrape reads them with ordinary verbs of the store and keeps them for some seconds. So scrapes of many workers cost
the database little, and the hot path nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from perdure.client.session import Session
from perdure.core.limits.breaker import PREFIX, BreakerInfo, Circuit
from perdure.core.limits.limit import KEYED, SECOND, LimitInfo
from perdure.core.model.run import MOST_COUNTED, CountBy, RunFilter, Status
from perdure.core.model.worker_info import WorkerStatus
from perdure.core.pinning import base_queue
from perdure.errors import PerdureError
from perdure.metrics import instruments
from perdure.metrics.cells import Readings
from perdure.metrics.instruments import OTHER, Instrument
from perdure.store.contract import Store

#: Gates that one reading looks at, and limits and breakers that it names; the rest of them are `other`.
GATES = 1000
NAMED_GATES = 100
#: Seconds that a reading may take, before the database counts as down.
PATIENCE = 5.0

_DEAD = (Status.FAILED, Status.BLOCKED)


class DatabaseReader:
    """Reads the database at most once in `keep` seconds."""

    def __init__(self, session: Session, *, keep: float, queues: int) -> None:
        self._session = session
        self._keep = keep
        self._queue_bound = queues
        self._read_at = 0.0
        self._reading: asyncio.Task[Readings] | None = None
        #: The last readings.
        self.last: Readings = _down()

    async def read(self) -> Readings:
        """Return the readings, from the database if the last ones are old. Callers share one reading."""
        system = self._session.system
        if not self._read_at or system.monotonic() - self._read_at >= self._keep:
            running = self._reading
            if running is None or running.done() or running.get_loop() is not asyncio.get_running_loop():
                running = self._reading = system.spawn(self._refresh(), "perdure metrics reading")
            return await asyncio.shield(running)
        return self.last

    async def _refresh(self) -> Readings:
        try:
            async with asyncio.timeout(PATIENCE):
                self.last = await self._read(await self._session.connect())
        except (PerdureError, TimeoutError):
            self.last = _down()
        self._read_at = self._session.system.monotonic()
        return self.last

    async def _read(self, store: Store) -> Readings:
        found: Readings = {(instruments.DATABASE_UP.name, ()): [1.0]}
        await self._read_queues(store, found)
        gates = await store.gates("", GATES)
        if len(gates) == GATES:
            # Keys of limits may be many; breakers are few, and matter more.
            gates = [one for one in gates if one.breaker is None] + await store.gates(PREFIX, NAMED_GATES)
        _add_limits(found, [one for one in gates if one.breaker is None])
        _add_breakers(found, [one.breaker for one in gates if one.breaker is not None])
        for status in _DEAD:
            groups = await store.count(RunFilter(status=(status,)), CountBy(), MOST_COUNTED)
            _put(found, instruments.DEAD_LETTERS, sum(one.count for one in groups), status.value)
        return found

    async def _read_queues(self, store: Store, found: Readings) -> None:
        """Read the queues that live workers serve or that runs wait in."""
        served = [name for one in await store.workers() if one.status is WorkerStatus.ALIVE for name in one.queues]
        counted = await store.count(RunFilter(status=(Status.PENDING,)), CountBy(column="queue"), MOST_COUNTED)
        labels: set[str] = set()
        for name in dict.fromkeys([*served, *(str(one.value) for one in counted)]):
            backlog = await store.backlog(name, MOST_COUNTED)
            age = max(0.0, (store.clock() - backlog.oldest) / 1e6) if backlog.oldest else 0.0
            label = base_queue(name)
            label = label if label in labels or len(labels) < self._queue_bound else OTHER
            labels.add(label)
            _put(found, instruments.QUEUE_DEPTH, backlog.waiting, label, add=True)
            known = found.get((instruments.QUEUE_OLDEST_AGE.name, (label,)), [0.0])
            _put(found, instruments.QUEUE_OLDEST_AGE, max(age, *known), label)


def _down() -> Readings:
    return {(instruments.DATABASE_UP.name, ()): [0.0]}


def _put(found: Readings, instrument: Instrument, value: float, *labels: str, add: bool = False) -> None:
    before = found.get((instrument.name, labels), [0.0])[0] if add else 0.0
    found[instrument.name, labels] = [before + value]


def _add_limits(found: Readings, limits: Sequence[LimitInfo]) -> None:
    names: set[str] = set()
    for one in limits:
        name = one.name.partition(KEYED)[0]
        name = name if name in names or len(names) < NAMED_GATES else OTHER
        names.add(name)
        _put(found, instruments.LIMIT_HELD, one.held, name, add=True)
        _put(found, instruments.LIMIT_WAITING, one.waiting, name, add=True)
        if one.bounds.concurrency:
            known = found.get((instruments.LIMIT_CONCURRENCY.name, (name,)), [float(one.bounds.concurrency)])
            _put(found, instruments.LIMIT_CONCURRENCY, min(one.bounds.concurrency, *known), name)
        if one.bounds.pace:
            rate = SECOND / one.bounds.pace
            known = found.get((instruments.LIMIT_RATE.name, (name,)), [rate])
            _put(found, instruments.LIMIT_RATE, min(rate, *known), name)


def _add_breakers(found: Readings, breakers: Sequence[BreakerInfo]) -> None:
    for one in breakers[:NAMED_GATES]:
        for state in Circuit:
            _put(found, instruments.BREAKER_STATE, float(one.circuit is state), one.name, state.value)
        _put(found, instruments.BREAKER_WAITING, one.waiting, one.name)
