"""Creating runs that are not there yet, in one statement.

A run whose id or key is taken makes the statement fail as a whole; the shared verb then finds out which.
"""

from __future__ import annotations

from collections.abc import Sequence

from perdure.core.model import Created, NewRun
from perdure.store.postgres.transaction import PostgresTransaction
from perdure.store.protocol import Change
from perdure.store.runs import as_run, params_of
from perdure.store.said import of_created

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


async def create_new(tx: PostgresTransaction, runs: Sequence[NewRun]) -> list[Created]:
    """Create them all. Raises `AlreadyThere` if one is there."""
    if not runs:
        return []
    for new in runs:
        tx.note(new.id, *of_created(new))
    await tx.run(_CREATE, *arrays_of(runs, tx.now), *tx.take_notes())
    tx.stir(Change.READY)
    return [Created(as_run(new, tx.now), True) for new in runs]


def arrays_of(runs: Sequence[NewRun], now: int) -> list[list[object]]:
    """The parameters of `NEW_RUNS`."""
    # In the order of their ids, so that two who create the same runs do not wait for each other crosswise.
    rows = [params_of(new, now) for new in sorted(runs, key=lambda new: new.id)]
    return [[row[column] for row in rows] for column in _COLUMNS]
