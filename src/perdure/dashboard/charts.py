"""Charts of the overview: throughput and durations over an hour, a day or a week.

A range has some tens of parts. Each part is one read of at most 200 of its runs, so nothing counts on the hot path; the
rate of a part with more runs is computed from the time that those 200 cover. Parts are kept: only the newest is read
again every few seconds, and an older one while some of its runs have not ended. All reads are paid from the budget of
live updates. A chart that is opened first shows the newest parts first.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress

from msgspec import Struct

from perdure.client.engine import Engine
from perdure.client.session import session_of
from perdure.core.model.run import RunTimes, Status
from perdure.dashboard.figures import durations, percentile
from perdure.errors import PerdureError
from perdure.http.live import StatementBudget

logger = logging.getLogger("perdure.dashboard")

SECOND = 1_000_000
#: Runs that are read of one part.
SAMPLE = 200
#: Seconds after which the newest part, and one with runs that have not ended, is read again.
_NEWEST, _UNFINISHED = 10.0, 120.0


class ChartRange(Struct, frozen=True):
    """A range of time: its length in seconds, and the number of its parts."""

    seconds: int
    parts: int

    @property
    def step(self) -> int:
        """Length of a part, in microseconds."""
        return self.seconds * SECOND // self.parts


RANGES = {"1h": ChartRange(3_600, 30), "24h": ChartRange(86_400, 48), "7d": ChartRange(604_800, 42)}


class ChartView(Struct, frozen=True, kw_only=True):
    """A chart: one value for each part; None where the part was not read yet, or no run has ended."""

    range: str
    #: Begin of each part, in seconds since the epoch.
    times: list[int]
    #: Runs a minute that were created in the part and have ended, and those that failed.
    ended: list[float | None]
    failed: list[float | None]
    #: Durations in seconds.
    p50: list[float | None]
    p99: list[float | None]
    complete: bool


class _Part(Struct, frozen=True, kw_only=True):
    ended: float
    failed: float
    p50: float | None
    p99: float | None
    #: Time after which it is read again, on the monotonic clock.
    until: float


class Charts:
    """Parts of charts that were read so far, for all viewers."""

    def __init__(self, engine: Engine, budget: StatementBudget) -> None:
        self._session = session_of(engine)
        self._system = self._session.system
        self._budget = budget
        self._parts: dict[tuple[str, int], _Part] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def read(self, name: str) -> ChartView:
        """The chart of a range as far as it is known; the rest is read meanwhile."""
        chosen = RANGES[name]
        store = await self._session.connect()
        newest = store.clock() // chosen.step * chosen.step
        starts = [newest - chosen.step * (chosen.parts - 1 - number) for number in range(chosen.parts)]
        self._forget(name, starts[0])
        now = self._system.monotonic()
        stale = [start for start in reversed(starts) if self._due(name, start, now)]
        if stale and (name not in self._tasks or self._tasks[name].done()):
            self._tasks[name] = self._system.spawn(self._fill(name, stale), "perdure charts")
        parts = [self._parts.get((name, start)) for start in starts]
        return ChartView(
            range=name,
            times=[start // SECOND for start in starts],
            ended=[None if one is None else one.ended for one in parts],
            failed=[None if one is None else one.failed for one in parts],
            p50=[None if one is None else one.p50 for one in parts],
            p99=[None if one is None else one.p99 for one in parts],
            complete=None not in parts,
        )

    async def close(self) -> None:
        """Stop reading."""
        tasks, self._tasks = [*self._tasks.values()], {}
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task

    def _due(self, name: str, start: int, now: float) -> bool:
        part = self._parts.get((name, start))
        return part is None or part.until <= now

    def _forget(self, name: str, first: int) -> None:
        self._parts = {key: part for key, part in self._parts.items() if key[0] != name or key[1] >= first}

    async def _fill(self, name: str, starts: Sequence[int]) -> None:
        try:
            for start in starts:
                await self._budget.take(1)
                self._parts[name, start] = await self._part(start, RANGES[name].step)
        except PerdureError as error:
            logger.debug("a chart could not be read: %s", error)

    async def _part(self, start: int, step: int) -> _Part:
        store = await self._session.connect()
        runs = await store.run_times(start, start + step, SAMPLE)
        now, clock = store.clock(), self._system.monotonic()
        end = min(start + step, now)
        # Newest first: of more runs than were read, the latest are known.
        begin = runs[-1].created_at if len(runs) == SAMPLE else start
        minutes = max(1.0, (end - begin) / SECOND) / 60
        finished = [run for run in runs if run.status.finished]
        spent = durations(finished)
        if now < start + step:
            until = clock + _NEWEST
        else:
            until = clock + _UNFINISHED if len(finished) < len(runs) else float("inf")
        return _Part(
            ended=len(finished) / minutes,
            failed=_failed(finished) / minutes,
            p50=_seconds(spent, 0.5),
            p99=_seconds(spent, 0.99),
            until=until,
        )


def _failed(runs: Sequence[RunTimes]) -> int:
    return sum(1 for run in runs if run.status is Status.FAILED)


def _seconds(spent: Sequence[int], share: float) -> float | None:
    return percentile(spent, share) / SECOND if spent else None
