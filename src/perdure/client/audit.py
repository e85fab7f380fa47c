"""The audit trail over all runs: list it, follow it, prune it, set its level; and reports of deploy checks."""

from __future__ import annotations

import builtins
import datetime
from collections.abc import AsyncGenerator, Sequence
from typing import TypedDict, Unpack

from perdure.client import deploy
from perdure.client.session import Session
from perdure.core.audit import Audit, Event, EventFilter, EventPage
from perdure.core.ids import check_id
from perdure.core.model.documents import StoredDeployReport
from perdure.core.option_checks import check_known, check_list, check_page, check_position, check_text
from perdure.core.time.duration import Duration, instant, microseconds

#: Events read, or deleted, in one transaction.
CHUNK = 1000
#: Microseconds for which an event may appear after one with a higher number: no transaction takes longer.
LATE = 10_000_000
#: Seconds between two looks for more events on a database that this process has to itself.
_POLL = 0.2


class EventOptions(TypedDict, total=False):
    """Filter of events."""

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


class AuditTrail:
    """Events of all runs of an engine's database: `engine.audit`."""

    def __init__(self, session: Session) -> None:
        self._session = session

    @property
    def level(self) -> Audit:
        """Amount of events that this engine and its workers write: `full`, `lifecycle` or `off`; may be set."""
        return self._session.store.audit

    @level.setter
    def level(self, level: str) -> None:
        self._session.store.audit = Audit.of(level)

    async def list(self, *, limit: int = 100, cursor: int | None = None, **options: Unpack[EventOptions]) -> EventPage:
        """List events, newest first, a page at a time: of a run, a kind, a type, an actor, a range of time."""
        check_page(limit, CHUNK)
        if cursor is not None:
            check_position("cursor", cursor)
        store = await self._session.connect()
        found = await store.events_page(make_event_filter(options), limit + 1, before=cursor)
        return EventPage(tuple(found[:limit]), found[limit - 1].id if len(found) > limit else None)

    async def follow(self, *, after: int | None = None, **options: Unpack[EventOptions]) -> AsyncGenerator[Event]:
        """Yield events as they come, from now on or after the event with that number; without end.

        Events of concurrent transactions may come in another order than that of their numbers.
        """
        filter, store = make_event_filter(options), await self._session.connect()
        if after is not None:
            check_position("after", after)
        else:
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
            await self._session.system.sleep(min(store.poll_interval, _POLL) if store.exclusive else 1.0)

    async def prune(self, older_than: Duration) -> int:
        """Delete events older than that, oldest first, in small transactions; their number.

        Runs are left as they are.
        """
        store = await self._session.connect()
        before = await store.now() - microseconds(older_than)
        from perdure.worker import delete_events

        return await delete_events(store, before, self._session.actor)

    async def deploy_checks(self, *, limit: int = 10) -> builtins.list[StoredDeployReport]:
        """List the latest stored reports of deploy checks, latest first. Only the last few are kept."""
        return await deploy.list_reports(self._session, limit)


def make_event_filter(options: EventOptions) -> EventFilter:
    """Check the filter of a listing of events. Raises `UsageError`."""
    check_known(options, EventOptions, "a listing of events")
    kind, run, type, actor = (options.get(name) for name in ("kind", "run", "type", "actor"))
    since, until = options.get("since"), options.get("until")
    return EventFilter(
        run_id=None if run is None else check_id(run),
        kinds=None if kind is None else _kinds(kind),
        type=None if type is None else check_text("type", type),
        actor=None if actor is None else check_text("actor", actor),
        since=None if since is None else instant(since, 0),
        until=None if until is None else instant(until, 0),
    )


def _kinds(kind: object) -> tuple[str, ...]:
    given = (kind,) if isinstance(kind, str) else check_list("kind", kind, "['started', 'failed']")
    return tuple(check_text("kind", one) for one in given)
