"""The audit trail over all runs: the half of an engine that lists it, follows it, and lets go of what is old."""

from __future__ import annotations

import datetime
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Sequence
from typing import TypedDict, Unpack

from perdure.core.audit import Audit, Event, EventFilter, EventPage
from perdure.core.ids import check_id
from perdure.core.system import System
from perdure.core.time.duration import Duration, instant, microseconds
from perdure.errors import UsageError
from perdure.store.contract import Store
from perdure.worker import delete_events

#: How many events are read, or deleted, in one transaction.
CHUNK = 1000
#: For how long a line may come to light after one with a higher number, in microseconds: transactions are not longer.
LATE = 10_000_000
#: How often to look for more, in seconds; less often on a server.
_POLL = 0.2


class EventOptions(TypedDict, total=False):
    """Which events."""

    #: Of this run.
    run: str | None
    #: Of this kind, or of one of these, such as `"failed"`.
    kind: str | Sequence[str] | None
    #: Of runs of this type.
    type: str | None
    #: Caused by this worker or client.
    actor: str | None
    since: datetime.datetime | None
    until: datetime.datetime | None


class Auditing(ABC):
    """What an `Engine` knows about what happened."""

    _system: System
    _actor: str
    _store: Store

    @abstractmethod
    async def _opened(self) -> Store:
        """The store, ready to be used."""

    @property
    def audit(self) -> Audit:
        """How much of the audit trail this engine and its workers write; may be set."""
        return self._store.audit

    @audit.setter
    def audit(self, level: str) -> None:
        self._store.audit = Audit.of(level)

    async def events(
        self, *, limit: int = 100, cursor: int | None = None, **options: Unpack[EventOptions]
    ) -> EventPage:
        """The audit trail of all runs, newest first, a page at a time: of a run, a kind, a type, an actor, a range of time."""
        if not 1 <= limit <= CHUNK:
            raise UsageError(f"limit must be between 1 and {CHUNK}, not {limit}")
        store = await self._opened()
        found = await store.events_page(_filter(options), limit + 1, before=cursor)
        return EventPage(tuple(found[:limit]), found[limit - 1].id if len(found) > limit else None)

    async def follow_events(
        self, *, after: int | None = None, **options: Unpack[EventOptions]
    ) -> AsyncGenerator[Event]:
        """Events as they come, from now on or after the one with a number; without end.

        Those of transactions that were under way at the same time may come in another order than that of their numbers.
        """
        filter, store = _filter(options), await self._opened()
        if after is None:
            newest = await store.events_page(EventFilter(), 1)
            after = newest[0].id if newest else 0
        seen: dict[int, int] = {}
        while True:
            last = after
            while page := await store.events_page(filter, CHUNK, after=last):
                last = page[-1].id
                for event in page:
                    if event.id not in seen:
                        seen[event.id] = event.at
                        yield event
            settled = store.clock() - LATE
            for number in sorted(seen):
                if seen[number] >= settled:
                    break
                after = number
                del seen[number]
            await self._system.sleep(min(store.poll_interval, _POLL) if store.exclusive else 1.0)

    async def prune_events(self, older_than: Duration) -> int:
        """Delete events older than that, oldest first, in small transactions; how many there were. Runs are left as they are."""
        store = await self._opened()
        before = await store.now() - microseconds(older_than)
        return await delete_events(store, before, self._actor)


def _filter(options: EventOptions) -> EventFilter:
    kind, run = options.get("kind"), options.get("run")
    since, until = options.get("since"), options.get("until")
    return EventFilter(
        run_id=None if run is None else check_id(run),
        kinds=None if kind is None else (kind,) if isinstance(kind, str) else tuple(kind),
        type=options.get("type"),
        actor=options.get("actor"),
        since=None if since is None else instant(since, 0),
        until=None if until is None else instant(until, 0),
    )
