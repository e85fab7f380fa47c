"""Watermarks of queues and types, set for all engines: once enough runs are queued, starts are refused or wait."""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Protocol

from perdure.core.ids import check_name
from perdure.core.model.run import NewRun
from perdure.core.option_checks import check_instance, check_text, check_whole
from perdure.core.policy.watermark import WAIT, Watermark
from perdure.core.system import System
from perdure.errors import Overloaded, UsageError
from perdure.store.contract import Store
from perdure.store.sql.dialect import Transaction
from perdure.store.sql.watermarks import depth, watermarks

if TYPE_CHECKING:
    from perdure.client.session import Session

#: Seconds for which watermarks, and depths, are used without reading them again.
MARKS_FRESH = 3.0
DEPTH_FRESH = 1.0

#: `queue` or `type`, and its name.
Place = tuple[str, str]


class Watermarks:
    """Watermarks of an engine's database, for all processes that start runs there: `engine.queues.watermarks`."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def set(self, watermark: Watermark, reason: str = "") -> None:
        """Set a watermark, in place of the present one. Other engines follow within a few seconds."""
        check_instance("watermark", watermark, Watermark, "Watermark(queue='mail', high=1000)")
        if watermark is None:
            raise UsageError("watermark=None: to remove one, use `watermarks.remove`")
        await (await self._session.connect()).set_watermark(
            watermark, self._session.actor, check_text("reason", reason)
        )
        self._session.backpressure.forget()

    async def remove(self, *, queue: str | None = None, type: str | None = None, reason: str = "") -> None:
        """Remove the watermark of a queue or a type; the one given to an `Engine` applies again."""
        store = await self._session.connect()
        await store.remove_watermark(*_place(queue, type), self._session.actor, check_text("reason", reason))
        self._session.backpressure.forget()

    async def list(self) -> builtins.list[Watermark]:
        """List the watermarks that are set in the database."""
        return await (await self._session.connect()).watermarks()

    async def depth(self, *, queue: str | None = None, type: str | None = None, limit: int = 100_000) -> int:
        """Count the runs that are ready and wait for a worker, on a queue or of a type, up to `limit`."""
        most = min(check_whole("limit", limit, 1), 2**31)
        return await (await self._session.connect()).depth(*_place(queue, type), most)


class WatermarkReader(Protocol):
    """Reads watermarks and depths: the store, or a connection of the caller."""

    async def watermarks(self) -> list[Watermark]:
        """Read every watermark that is set."""

    async def depth(self, kind: str, name: str, limit: int) -> int:
        """Count the runs that wait, up to `limit`."""


class _Gauge:
    """Last known depth of one place."""

    def __init__(self) -> None:
        self.counted_at = float("-inf")
        self.depth = 0
        #: Runs of `depth` that this engine started since the count. Some of them may be done by now.
        self.started = 0
        self.full = False


class Backpressure:
    """Watermarks and depths as one engine knows them, by which starts are held back.

    An engine reads the watermarks every few seconds, and counts each queue or type at most once a second. In between it
    adds the runs that it started itself, so that one producer alone does not overshoot. Children of workflows and runs
    of schedules are always admitted: work that has begun must be able to end.
    """

    def __init__(self, system: System, own: Iterable[Watermark]) -> None:
        self._system = system
        self._own = {(mark.kind, mark.name): mark for mark in own}
        self._marks = self._own
        self._looked_at = float("-inf")
        #: Monotonic time until which starts need not be admitted: no watermark is known, and that knowledge is fresh.
        self.idle_until = float("-inf")
        self._gauges: dict[Place, _Gauge] = {}

    async def admit(self, runs: Sequence[NewRun], reader: WatermarkReader, *, may_wait: bool) -> None:
        """Let runs be started, or wait until they may be. Raises `Overloaded`."""
        now = self._system.monotonic()
        if now - self._looked_at >= MARKS_FRESH:
            self._looked_at = now
            self._marks = {**self._own, **{(mark.kind, mark.name): mark for mark in await reader.watermarks()}}
            if not self._marks:
                self.idle_until = now + MARKS_FRESH
        counts: dict[Place, int] = {}
        for run in runs:
            for place in (("queue", run.queue), ("type", run.type)):
                counts[place] = counts.get(place, 0) + 1
        for place in counts:
            if place in self._marks:
                await self._admit(place, self._marks[place], reader, may_wait=may_wait)
        for place, count in counts.items():
            if place in self._gauges:
                self._gauges[place].depth += count
                self._gauges[place].started += count

    def forget(self) -> None:
        """Read the watermarks again before the next start."""
        self._looked_at = self.idle_until = float("-inf")

    async def _admit(self, place: Place, mark: Watermark, reader: WatermarkReader, *, may_wait: bool) -> None:
        gauge = self._gauges.setdefault(place, _Gauge())
        while True:
            now = self._system.monotonic()
            if now - gauge.counted_at >= DEPTH_FRESH:
                # Set before the count, so that one of many concurrent starts counts.
                gauge.counted_at, gauge.started = now, 0
                gauge.depth = await reader.depth(*place, mark.high + 1)
            gauge.full = gauge.depth >= (mark.floor if gauge.full else mark.high)
            if not gauge.full:
                return
            # An estimate is no reason to refuse: wait for the next count.
            if not may_wait or (mark.when_full != WAIT and not gauge.started):
                raise _refused(mark, gauge.depth)
            left = gauge.counted_at + DEPTH_FRESH - self._system.monotonic()
            await self._system.sleep(max(0.0, left) + 0.01 * self._system.random())


class ConnectionReader:
    """Reads watermarks on a connection of the caller, in the transaction that is open there."""

    def __init__(self, store: Store, connection: object, actor: str) -> None:
        self._store = store
        self._connection = connection
        self._actor = actor

    async def watermarks(self) -> list[Watermark]:
        """Read every watermark that is set."""
        async with self._transaction() as tx:
            return await watermarks(tx)

    async def depth(self, kind: str, name: str, limit: int) -> int:
        """Count the runs that wait, up to `limit`."""
        async with self._transaction() as tx:
            return await depth(tx, kind, name, limit)

    def _transaction(self) -> AbstractAsyncContextManager[Transaction]:
        return self._store.user_transaction(self._connection, self._actor, locking=False)


def _refused(mark: Watermark, depth: int) -> Overloaded:
    return Overloaded(
        f"the {mark.kind} {mark.name!r} has {depth} runs or more that wait for a worker, and {mark.high} are enough; "
        f"nothing was started; try again when fewer than {mark.floor} wait, start more workers, or raise the watermark",
        depth=depth,
        high=mark.high,
    )


def _place(queue: str | None, type: str | None) -> tuple[str, str]:
    if (queue is None) == (type is None):
        raise UsageError("say which: one of queue and type")
    return ("type", check_name(type, "type")) if queue is None else ("queue", check_name(queue, "queue"))
