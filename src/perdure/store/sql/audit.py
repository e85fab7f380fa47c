"""The audit trail: the text of each event, the events that a transaction gathers, and queries over them.

A transaction writes the events that the audit level asks for; observers get them once it has committed. Events are
numbered when they are written, not when their transaction commits, so an event with a lower number may appear after one
with a higher. A reader that follows the trail has to look back a little.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from perdure.core.audit import LONGEST_DETAIL, Event, EventFilter, error_summary
from perdure.core.model.outputs import OutputKind
from perdure.core.model.run import NewRun, Run, Status
from perdure.core.model.turn import Block, Finish, Park, RetryLater, Turn
from perdure.store.sql.dialect import Params, Transaction, placeholders
from perdure.store.sql.rows import EVENT, to_event, to_json, values

EventText = tuple[str, str]

_COMPLETED = Status.COMPLETED


def created_event(new: NewRun) -> EventText:
    """Event of a new run."""
    if new.parent_id is None:
        return "created", to_json({"type": new.type})
    return "created", to_json({"type": new.type, "parent": new.parent_id})


#: Of the given runs, those that a bare INSERT made, and that have no event of it. Every other way to start a run gives
#: it a write id or, as the statement `insert` does, an event.
_INSERTED = """
SELECT r.id, r.type, r.created_at
FROM perdure_runs r
WHERE r.id IN ({names}) AND r.write_id = ''
  AND NOT EXISTS (SELECT 1 FROM perdure_events e WHERE e.run_id = r.id AND e.kind = 'created')
"""


async def note_inserted(tx: Transaction, run_ids: Collection[str]) -> None:
    """Note the creation of runs that a bare INSERT made, before the first claim or the end of each.

    A trigger would write the event at once, but MySQL refuses one to a role without further rights, and the role of a
    producer may have no access to the audit trail.
    """
    if not (tx.notes and run_ids):
        return
    names, params = placeholders("name", [*run_ids])
    for run_id, type, created_at in await tx.fetch(_INSERTED.replace("{names}", names), params):
        tx.note_past(run_id, created_at, "created", "sql", to_json({"type": type}))


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
    return "heartbeat", f'{{"details":{details}}}' if len(details) <= LONGEST_DETAIL else "{}"


def note_timeout(tx: Transaction, run_id: str, limit: str) -> None:
    """Note which timeout expired, if any."""
    if limit:
        tx.note(run_id, "timed_out", to_json({"timeout": limit}))


def note_finish(tx: Transaction, run_id: str, outcome: Finish) -> None:
    """Note how a run ended."""
    if outcome.timeout:
        note_timeout(tx, run_id, outcome.timeout)
    tx.note(run_id, *finish_event(outcome))


def note_claims(tx: Transaction, runs: Iterable[Run], now: int, going_on: Collection[str] = ()) -> None:
    """Note claims made at that time, each as the start of an attempt or as its continuation.

    The start time of the attempt tells which. `going_on`: ids of runs known to continue, for a clock that stands still.
    """
    if tx.notes:
        for run in runs:
            starts = run.started_at == now and run.id not in going_on
            if tx.repeats or starts:
                tx.note(run.id, *claim_event(run, starts=starts))


def note_again(tx: Transaction, run_id: str, retry: RetryLater, attempt: int, wake_at: int) -> None:
    """Note the next attempt of a run, and its cause."""
    note_timeout(tx, run_id, retry.timeout)
    tx.note(run_id, *retry_event(retry, attempt, wake_at))


def note_work(tx: Transaction, turn: Turn) -> None:
    """Note the timers and children of a turn, and the heartbeats among its outputs."""
    for kind, data in turn.notes:
        tx.note(turn.lease.run_id, kind, data)
    for output in turn.outputs:
        if output.kind is OutputKind.HEARTBEAT:
            tx.note(turn.lease.run_id, *heartbeat_event(output.payload or "null"))


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
