"""The audit trail: the text of each event, the events that a transaction gathers, and queries over them.

A transaction writes the events that the audit level asks for; observers get them once it has committed. Events are
numbered when they are written, not when their transaction commits, so an event with a lower number may appear after one
with a higher. A reader that follows the trail has to look back a little.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable
from typing import Any

import msgspec

from perdure.core.audit import NEXT, REPEATED, Audit, Event, EventFilter
from perdure.core.model.outputs import OutputKind
from perdure.core.model.run import NewRun, Run, Status
from perdure.core.model.turn import Block, Finish, Park, RetryLater, Turn
from perdure.store.contract import Change, NewEvent
from perdure.store.server.clock import ServerClock
from perdure.store.sql.dialect import Params, Transaction, placeholders
from perdure.store.sql.rows import EVENT, to_event, to_json, values

#: Longest error message or heartbeat details that an event keeps, in characters.
_SHORT = 500

EventText = tuple[str, str]

_COMPLETED = Status.COMPLETED


def created_event(new: NewRun) -> EventText:
    """Event of a new run."""
    if new.parent_id is None:
        return "created", to_json({"type": new.type})
    return "created", to_json({"type": new.type, "parent": new.parent_id})


def claim_event(run: Run, *, starts: bool) -> EventText:
    """Event of a claim, which starts an attempt or continues one."""
    kind = "started" if starts else "claimed"
    return kind, f'{{"token":{run.token},"attempt":{run.attempt}}}'


def finish_event(outcome: Finish) -> EventText:
    """Event of a run's end."""
    if outcome.status is _COMPLETED:
        return "completed", "{}"
    return outcome.status.value, to_json(error_summary(outcome.payload))


def park_event(park: Park) -> EventText:
    """Event of a run that starts to wait."""
    return "parked", f'{{"for":"{park.reason.value}","until":{park.wake_at}}}'


def retry_event(retry: RetryLater, attempt: int, wake_at: int) -> EventText:
    """Event of a run's next attempt; the error is that of the previous one."""
    return "retried", to_json({"attempt": attempt, "at": wake_at, **error_summary(retry.error)})


def block_event(block: Block) -> EventText:
    """Event of a run that is blocked."""
    return "blocked", to_json({"reason": block.reason.value, **error_summary(block.error)})


def heartbeat_event(details: str) -> EventText:
    """Event of an activity's heartbeat."""
    return "heartbeat", f'{{"details":{details}}}' if len(details) <= _SHORT else "{}"


def error_summary(failure: str | None) -> dict[str, str]:
    """Type and message of an error, kept because a run stores only its latest one."""
    try:
        known = msgspec.json.decode(failure or "{}", type=dict[str, Any])
    except msgspec.MsgspecError as broken:
        # The trail is for people; what is wrong with an error must not keep its run from ending.
        known = {"message": f"its error cannot be read: {broken}"}
    text = str(known.get("message", ""))
    return {"error": str(known.get("type", "")), "message": text if len(text) <= _SHORT else f"{text[:_SHORT]}…"}


def note_timeout(tx: Transaction, run_id: str, limit: str) -> None:
    """Note which timeout expired, if any."""
    if limit:
        tx.note(run_id, "timed_out", to_json({"timeout": limit}))


def note_finish(tx: Transaction, run_id: str, outcome: Finish) -> None:
    """Note how a run ended."""
    if outcome.timeout:
        note_timeout(tx, run_id, outcome.timeout)
    tx.note(run_id, *finish_event(outcome))


def note_again(tx: Transaction, run_id: str, retry: RetryLater, attempt: int, wake_at: int) -> None:
    """Note the next attempt of a run, and its cause."""
    note_timeout(tx, run_id, retry.timeout)
    tx.note(run_id, *retry_event(retry, attempt, wake_at))


def note_heartbeats(tx: Transaction, turn: Turn) -> None:
    """Note the heartbeats among a turn's outputs."""
    for output in turn.outputs:
        if output.kind is OutputKind.HEARTBEAT:
            tx.note(turn.lease.run_id, *heartbeat_event(output.payload or "null"))


_FULL, _OFF = Audit.FULL, Audit.OFF
#: Kinds of events that are never written, and those that the lower levels do not write.
_SPOKEN = frozenset({NEXT})
_UNWRITTEN = REPEATED | _SPOKEN


class TransactionLog(ABC):
    """Audit events and changes that a transaction gathers; the half of a `Transaction` that needs no database."""

    #: Runs that failed or were blocked without their code, each with its error. A class attribute: hardly ever set.
    buried: tuple[tuple[str, str], ...] = ()

    def __init__(self, actor: str, audit: Audit, *, has_observers: bool) -> None:
        self.actor = actor
        self.audit = audit
        #: Whether any event is gathered.
        self.notes = audit is not _OFF or has_observers
        #: Whether repetitive events are gathered, too. Check it before making one: there may be many.
        self.repeats = audit is _FULL
        #: Events for observers, including those that are not written; None: there are no observers.
        self.observed: list[NewEvent] | None = [] if has_observers else None
        self._writes = audit is not _OFF
        self._unwritten = _SPOKEN if self.repeats else _UNWRITTEN
        #: All announced changes, as one integer: combining flags is slow.
        self.announced = 0
        self._lines: list[NewEvent] = []

    @property
    @abstractmethod
    def now(self) -> int:
        """The database's time when the transaction got its locks."""

    @property
    def has_observers(self) -> bool:
        """True if observers are to be called with the events after the commit."""
        return self.observed is not None

    def note(self, run_id: str, kind: str, data: str = "{}") -> None:
        """Add an audit event, if its level is written or observed."""
        # Looked up once a transaction, and not asked of the level for every line.
        if self._writes and kind not in self._unwritten:
            self._lines.append((run_id, self.now, kind, self.actor, data))
        if self.observed is not None:
            self.observed.append((run_id, self.now, kind, self.actor, data))

    def observe(self, run_id: str, kind: str, data: str = "{}") -> None:
        """Pass an event to the observers that a statement writes by itself."""
        if self.observed is not None:
            self.observed.append((run_id, self.now, kind, self.actor, data))

    def note_claims(self, runs: Iterable[Run], now: int, going_on: Collection[str] = ()) -> None:
        """Note claims made at that time, each as the start of an attempt or as its continuation.

        The start time of the attempt tells which. `going_on`: ids of runs known to continue, for a clock that stands
        still.
        """
        if self.notes:
            for run in runs:
                starts = run.started_at == now and run.id not in going_on
                if self.repeats or starts:
                    self.note(run.id, *claim_event(run, starts=starts))

    def notify(self, change: Change) -> None:
        """Announce a change to waiting code after the commit."""
        self.announced |= int(change)

    def bury(self, run_id: str, error: str) -> None:
        """Log a run that fails or is blocked without its code, after the commit."""
        self.buried = (*self.buried, (run_id, error))

    @property
    def changes(self) -> Change:
        """All announced changes."""
        return Change(self.announced)

    def _take_lines(self) -> list[NewEvent]:
        """Take the gathered events, to write them."""
        lines, self._lines = self._lines, []
        return lines


class ServerTransactionLog(TransactionLog):
    """The log of a transaction whose time is the server's."""

    def __init__(self, clock: ServerClock, actor: str, audit: Audit, *, has_observers: bool) -> None:
        super().__init__(actor, audit, has_observers=has_observers)
        self._clock = clock
        self._now = 0

    @property
    def now(self) -> int:
        """The server's time at the first look at it since rows were last locked."""
        if self._now == 0:
            self._now = self._clock.now()
        return self._now

    def locked(self) -> None:
        """Rows were locked just now, so it is later than it was."""
        self._now = 0


_EVENT_COLUMNS = ", ".join("e." + column for column in EVENT.split(", "))

_OF_TYPE = "EXISTS (SELECT 1 FROM perdure_runs r WHERE r.id = e.run_id AND r.type = :type)"

_FORGET_EVENTS = """
DELETE FROM perdure_events
WHERE id <= :upto AND at < :before
"""


async def events_page(
    tx: Transaction, filter: EventFilter, limit: int, *, before: int | None, after: int | None
) -> list[Event]:
    """Events before a number, newest first; or after one, oldest first."""
    terms, params = _conditions(filter)
    if before is not None:
        terms.append("e.id < :before")
    if after is not None:
        terms.append("e.id > :after")
    where = f"WHERE {' AND '.join(terms)}" if terms else ""
    # The run comes first in the index that lists a run's lines.
    order = "ASC" if after is not None else "DESC"
    by = f"e.run_id {order}, e.id {order}" if filter.run_id is not None else f"e.id {order}"
    sql = f"SELECT {_EVENT_COLUMNS} FROM perdure_events e {where} ORDER BY {by} LIMIT :limit"
    return values(to_event, await tx.fetch(sql, {**params, "before": before, "after": after, "limit": limit}))


async def delete_events(tx: Transaction, upto: int, before: int) -> None:
    """Delete the events up to a number that are older than a time."""
    await tx.execute(_FORGET_EVENTS, {"upto": upto, "before": before})


def _conditions(filter: EventFilter) -> tuple[list[str], Params]:
    terms: list[str] = []
    params: dict[str, object] = {}
    for column in ("run_id", "actor"):
        value = getattr(filter, column)
        if value is not None:
            terms.append(f"e.{column} = :{column}")
            params[column] = value
    if filter.kinds is not None:
        chosen, kinds = placeholders("kind", filter.kinds)
        terms.append(f"e.kind IN ({chosen})" if kinds else "1 = 0")
        params |= kinds
    if filter.type is not None:
        terms.append(_OF_TYPE)
        params["type"] = filter.type
    if filter.since is not None:
        terms.append("e.at >= :since")
        params["since"] = filter.since
    if filter.until is not None:
        terms.append("e.at < :until")
        params["until"] = filter.until
    return terms, params
