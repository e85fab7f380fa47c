"""Create and load runs on PostgreSQL, many at a time.

Runs are created in one statement; a run whose id or key is taken fails all of it, and the shared verb then finds out
which. Loading takes one query for each kind of row.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from msgspec.structs import replace

from perdure.core.model.claim import LoadedRun
from perdure.core.model.record import Message, Record
from perdure.core.model.run import CreatedRun, NewRun, Run
from perdure.store.contract import Change
from perdure.store.postgres.transaction import PostgresTransaction, Unjoinable, join_numbers, join_texts, unnest_texts
from perdure.store.sql.audit import created_event
from perdure.store.sql.reads import check_whole, inbox
from perdure.store.sql.rows import MESSAGE, RECORD, SHOWN_RUN, to_histories, to_message, to_run
from perdure.store.sql.runs.create import as_run, params_of

_NULLABLE = frozenset({"idempotency_key", "parent_id", "parent_location"})
_COLUMNS = {
    "id": "text",
    "type": "text",
    "input": "text",
    "queue": "text",
    "priority": "bigint",
    "status": "text",
    "reason": "text",
    "wake_at": "bigint",
    "deadline": "bigint",
    "now": "bigint",
    "idempotency_key": "text",
    "parent_id": "text",
    "parent_location": "text",
    "write_id": "text",
    "close_by": "bigint",
    "max_attempts": "bigint",
    "options": "text",
}

NEW_RUNS = f"""
INSERT INTO perdure_runs
  (id, type, input, queue, priority, status, reason, wake_at, deadline, created_at, idempotency_key, parent_id,
   parent_location, write_id, close_by, max_attempts, options)
SELECT * FROM unnest({", ".join(f"${place}::{kind}[]" for place, kind in enumerate(_COLUMNS.values(), 1))})
"""

_CREATE = f"""
WITH made AS ({NEW_RUNS})
INSERT INTO perdure_events (run_id, at, kind, actor, data)
SELECT *
FROM unnest(${len(_COLUMNS) + 1}::text[], ${len(_COLUMNS) + 2}::bigint[], ${len(_COLUMNS) + 3}::text[],
  ${len(_COLUMNS) + 4}::text[], ${len(_COLUMNS) + 5}::text[])
"""


_JOINED = {
    "id": "text", "type": "text", "input": "text", "queue": "text", "priority": "bigint", "wake_at": "bigint",
    "deadline": "bigint", "idempotency_key": "text", "parent_id": "text", "parent_location": "text", "write_id": "text",
    "close_by": "bigint", "max_attempts": "bigint", "options": "text", "said": "text",
}  # fmt: skip
_NOW, _ACTOR = f"${len(_JOINED) + 1}::bigint", f"${len(_JOINED) + 2}::text"

_MAKE = f"""
INSERT INTO perdure_runs
  (id, type, input, queue, priority, status, reason, wake_at, deadline, created_at, idempotency_key, parent_id,
   parent_location, write_id, close_by, max_attempts, options)
SELECT id, COALESCE(type, ''), COALESCE(input, ''), COALESCE(queue, ''), priority,
  CASE WHEN wake_at > {_NOW} THEN 'waiting' ELSE 'pending' END, CASE WHEN wake_at > {_NOW} THEN 'timer' END,
  GREATEST(wake_at, {_NOW}), deadline, {_NOW}, idempotency_key, parent_id, parent_location, COALESCE(write_id, ''),
  close_by, max_attempts, COALESCE(options, '')
FROM given
"""

#: Creates runs from joined text columns, with an audit event for each if `said` is not NULL.
CREATE_JOINED = f"""
WITH given AS MATERIALIZED (
  SELECT * FROM {unnest_texts(_JOINED, 1, name="split")}
), made AS ({_MAKE})
INSERT INTO perdure_events (run_id, at, kind, actor, data)
SELECT id, {_NOW}, 'created', {_ACTOR}, said FROM given WHERE said IS NOT NULL
"""


#: Columns that differ between usual runs of one call, and those that are sent once for all of them.
_EACH = {"id": "text", "write_id": "text", "input": "text"}
_SAME = {
    "type": "text", "queue": "text", "priority": "bigint", "wake_at": "bigint", "deadline": "bigint",
    "idempotency_key": "text", "parent_id": "text", "parent_location": "text", "close_by": "bigint",
    "max_attempts": "bigint", "options": "text",
}  # fmt: skip
_FIRST = len(_EACH) + 1
_AFTER = _FIRST + len(_SAME)

#: Creates runs that differ in few columns, with an audit event for each if `said` is not NULL.
CREATE_ALIKE = f"""
WITH made AS (
  INSERT INTO perdure_runs
    (id, write_id, input, {", ".join(_SAME)}, status, reason, created_at)
  SELECT id, COALESCE(write_id, ''), COALESCE(input, ''),
    {", ".join(f"${place}::{kind}" for place, kind in enumerate(_SAME.values(), _FIRST))},
    ${_AFTER}::text, ${_AFTER + 1}::text, ${_AFTER + 2}::bigint
  FROM {unnest_texts(_EACH, 1)}
)
INSERT INTO perdure_events (run_id, at, kind, actor, data)
SELECT id, ${_AFTER + 2}::bigint, 'created', ${_AFTER + 3}::text, ${_AFTER + 4}::text
FROM unnest(string_to_array($1::text, E'\\x1f')) AS one (id)
WHERE ${_AFTER + 4}::text IS NOT NULL
"""

_COLUMNS_OF_EACH = [attrgetter(name) for name in _EACH]
_COLUMNS_OF_ALL = attrgetter(*_SAME)


async def create_new_runs(tx: PostgresTransaction, runs: Sequence[NewRun]) -> list[CreatedRun]:
    """Create all of the runs. Raises `AlreadyThere` if one exists."""
    if not runs:
        return []
    # In the order of ids, so that two transactions that create the same runs do not deadlock.
    ordered = sorted(runs, key=attrgetter("id"))
    alike: list[object] = []
    try:
        if alike := _alike(tx, ordered):
            await tx.run(CREATE_ALIKE, *alike)
        else:
            await tx.run(CREATE_JOINED, *_joined(tx, ordered), tx.now, tx.actor)
    except Unjoinable:
        for new in runs:
            tx.note(new.id, *created_event(new))
        await tx.run(_CREATE, *arrays_of(runs, tx.now), *tx.take_notes())
    else:
        if tx.observed is not None:
            for new in runs:
                tx.observe(new.id, *created_event(new))
    tx.notify(Change.READY)
    if alike:
        made = as_run(runs[0], tx.now)
        return [CreatedRun(replace(made, id=new.id, input=new.input), True) for new in runs]
    return [CreatedRun(as_run(new, tx.now), True) for new in runs]


def _alike(tx: PostgresTransaction, runs: Sequence[NewRun]) -> list[object]:
    """Return the parameters of `CREATE_ALIKE`; none if runs differ in other columns. Raises `Unjoinable`."""
    first = runs[0]
    same = _COLUMNS_OF_ALL(first)
    if first.held_back or list(map(_COLUMNS_OF_ALL, runs)).count(same) != len(runs):
        return []
    status, reason, wake_at = first.initial_state(tx.now)
    said = created_event(first)[1] if tx.audit.writes("created") else None
    columns: list[object] = [join_texts(list(map(column, runs))) for column in _COLUMNS_OF_EACH]
    values = dict(zip(_SAME, same, strict=True), wake_at=wake_at)
    return [*columns, *values.values(), status, reason, tx.now, tx.actor, said]


def _joined(tx: PostgresTransaction, runs: Sequence[NewRun]) -> list[str]:
    """Return all parameters of `CREATE_JOINED` but the last two. Raises `Unjoinable`."""
    said = [created_event(new)[1] if tx.audit.writes("created") else None for new in runs]
    columns: list[str] = []
    for name, kind in _JOINED.items():
        items: list[Any] = list(said) if name == "said" else list(map(attrgetter(name), runs))
        if kind == "text" and name in _NULLABLE and "" in items:
            # An empty text would arrive as NULL, which differs in a nullable column.
            raise Unjoinable
        columns.append(join_texts(items) if kind == "text" else join_numbers(items))
    return columns


def arrays_of(runs: Sequence[NewRun], now: int) -> list[list[object]]:
    """Return the parameters of `NEW_RUNS`."""
    # In the order of ids, so that two transactions that create the same runs do not deadlock.
    rows = [params_of(new, now) for new in sorted(runs, key=lambda new: new.id)]
    return [[row[column] for row in rows] for column in _COLUMNS]


_RUNS = f"SELECT {SHOWN_RUN} FROM perdure_runs WHERE id = ANY($1::text[])"

_HISTORIES = f"""
SELECT run_id, {RECORD}
FROM perdure_history
WHERE run_id = ANY($1::text[])
ORDER BY run_id, seq
"""

_UNREAD = f"""
SELECT {MESSAGE}
FROM perdure_messages
WHERE run_id = ANY($1::text[]) AND consumed = 0
ORDER BY run_id, seq
"""


async def get_runs(tx: PostgresTransaction, run_ids: Sequence[str]) -> list[Run]:
    """Return those of the runs that exist."""
    return [to_run(row) for row in await tx.run(_RUNS, run_ids)]


async def load_runs(tx: PostgresTransaction, run_ids: Sequence[str], page: int) -> list[LoadedRun]:
    """Return runs with their histories and one page of unread messages each."""
    found = await get_runs(tx, run_ids)
    records: dict[str, list[Record]] = {run.id: [] for run in found}
    records |= to_histories(await tx.run(_HISTORIES, run_ids))
    unread: dict[str, list[Message]] = {run.id: [] for run in found}
    # Few runs have more than a page; the one statement for all others has no LIMIT, which could change its plan.
    for run in found:
        if run.inbox_seq > run.inbox_read + page:
            unread[run.id] = await inbox(tx, run.id, run.inbox_read, page)
    behind = {run.id: run.inbox_read for run in found if 0 < run.inbox_seq - run.inbox_read <= page}
    for message in map(to_message, await tx.run(_UNREAD, list(behind)) if behind else []):
        if message.seq > behind[message.run_id]:
            unread[message.run_id].append(message)
    for run in found:
        check_whole(run.id, records[run.id])
    return [LoadedRun(run=run, records=tuple(records[run.id]), inbox=tuple(unread[run.id])) for run in found]
