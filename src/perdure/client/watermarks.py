"""Holding producers back where enough waits already.

An engine looks at the watermarks that are set every few seconds, and counts what waits at most once a second for each. In between it adds what it
started itself, so that one producer alone does not run past the mark. Children of workflows and slots of schedules are not held back: what has begun is to end.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Protocol

from perdure.core.ids import check_name
from perdure.core.model.run import NewRun
from perdure.core.policy.watermark import WAIT, Watermark
from perdure.core.system import System
from perdure.errors import Overloaded, UsageError
from perdure.store.contract import Store
from perdure.store.sql.dialect import Transaction
from perdure.store.sql.watermarks import depth, watermarks

if TYPE_CHECKING:
    from perdure.client.engine import Engine

#: How old what is known of watermarks, and of what waits, may be, in seconds.
MARKS_FRESH = 3.0
DEPTH_FRESH = 1.0

#: What is counted: `queue` or `type`, and its name.
Place = tuple[str, str]


class Looks(Protocol):
    """Who can be asked."""

    async def watermarks(self) -> list[Watermark]:
        """Every watermark that is set."""

    async def depth(self, kind: str, name: str, limit: int) -> int:
        """How many runs wait."""


class _Gauge:
    """What is known of one place."""

    def __init__(self) -> None:
        self.counted_at = float("-inf")
        self.depth = 0
        #: How much of that was started here since it was counted. Some of it may be done by now.
        self.started = 0
        self.full = False


class Backpressure:
    """What an engine knows about how much waits."""

    def __init__(self, system: System, own: Iterable[Watermark]) -> None:
        self._system = system
        self._own = {(mark.kind, mark.name): mark for mark in own}
        self._marks = self._own
        self._looked_at = float("-inf")
        self._gauges: dict[Place, _Gauge] = {}

    @property
    def is_idle(self) -> bool:
        """Whether nothing is to be asked: there are no watermarks, as far as was known a moment ago."""
        return not self._marks and self._system.monotonic() - self._looked_at < MARKS_FRESH

    async def admit(self, runs: Sequence[NewRun], looks: Looks, *, may_wait: bool) -> None:
        """Let runs be started, or wait until they may be. Raises `Overloaded`."""
        now = self._system.monotonic()
        if now - self._looked_at >= MARKS_FRESH:
            self._looked_at = now
            self._marks = {**self._own, **{(mark.kind, mark.name): mark for mark in await looks.watermarks()}}
        counts: dict[Place, int] = {}
        for run in runs:
            for place in (("queue", run.queue), ("type", run.type)):
                counts[place] = counts.get(place, 0) + 1
        for place in counts:
            if place in self._marks:
                await self._admit(place, self._marks[place], looks, may_wait=may_wait)
        for place, count in counts.items():
            if place in self._gauges:
                self._gauges[place].depth += count
                self._gauges[place].started += count

    def forget(self) -> None:
        """Look again before the next start."""
        self._looked_at = float("-inf")

    async def _admit(self, place: Place, mark: Watermark, looks: Looks, *, may_wait: bool) -> None:
        gauge = self._gauges.setdefault(place, _Gauge())
        while True:
            now = self._system.monotonic()
            if now - gauge.counted_at >= DEPTH_FRESH:
                # Before it is counted: of many who start at once one counts.
                gauge.counted_at, gauge.started = now, 0
                gauge.depth = await looks.depth(*place, mark.high + 1)
            gauge.full = gauge.depth >= (mark.floor if gauge.full else mark.high)
            if not gauge.full:
                return
            # What is only guessed is no reason to refuse; it is counted as soon as that may be.
            if not may_wait or (mark.when_full != WAIT and not gauge.started):
                raise _refused(mark, gauge.depth)
            left = gauge.counted_at + DEPTH_FRESH - self._system.monotonic()
            await self._system.sleep(max(0.0, left) + 0.01 * self._system.random())


class OnConnection:
    """Looks by a connection of the caller's, in the transaction that is open there."""

    def __init__(self, store: Store, connection: object, actor: str) -> None:
        self._store = store
        self._connection = connection
        self._actor = actor

    async def watermarks(self) -> list[Watermark]:
        """Every watermark that is set."""
        async with self._transaction() as tx:
            return await watermarks(tx)

    async def depth(self, kind: str, name: str, limit: int) -> int:
        """How many runs wait."""
        async with self._transaction() as tx:
            return await depth(tx, kind, name, limit)

    def _transaction(self) -> AbstractAsyncContextManager[Transaction]:
        return self._store.borrowed(self._connection, self._actor, locking=False)


class Watermarks:
    """The watermarks that are set in an engine's database, for everybody who starts runs there."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def set(self, watermark: Watermark) -> None:
        """Set one, in place of the one that is there. Others know of it within a few seconds."""
        await (await self._engine._opened()).set_watermark(watermark, self._engine._actor)
        self._engine._backpressure.forget()

    async def remove(self, *, queue: str | None = None, type: str | None = None) -> None:
        """Remove that of a queue or of a type; what an engine was told itself holds again."""
        store = await self._engine._opened()
        await store.remove_watermark(*_place(queue, type), self._engine._actor)
        self._engine._backpressure.forget()

    async def list(self) -> builtins.list[Watermark]:
        """Every one that is set in the database."""
        return await (await self._engine._opened()).watermarks()

    async def depth(self, *, queue: str | None = None, type: str | None = None, limit: int = 100_000) -> int:
        """How many runs are ready and wait for a worker, on a queue or of a type; counted up to `limit`."""
        return await (await self._engine._opened()).depth(*_place(queue, type), limit)


def _place(queue: str | None, type: str | None) -> Place:
    if (queue is None) == (type is None):
        raise UsageError("say which: one of queue and type")
    return ("type", check_name(type, "type")) if queue is None else ("queue", check_name(queue, "queue"))


def _refused(mark: Watermark, depth: int) -> Overloaded:
    return Overloaded(
        f"the {mark.kind} {mark.name!r} has {depth} runs or more that wait for a worker, and {mark.high} are enough; nothing was started. "
        f"Try again when fewer than {mark.floor} wait, start more workers, or raise the watermark",
        depth=depth,
        high=mark.high,
    )
