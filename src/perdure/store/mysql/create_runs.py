"""Creating runs that are not there yet, in one packet.

A run whose id or key is taken fails the packet before its COMMIT; the shared verb then finds out which.
"""

from __future__ import annotations

from collections.abc import Sequence

from perdure.core.model.run import CreatedRun, NewRun
from perdure.store.contract import Change
from perdure.store.mysql.transaction import MysqlTransaction
from perdure.store.sql.audit import of_created
from perdure.store.sql.runs.create import as_run, params_of

NEW_RUNS = """
INSERT INTO perdure_runs
  (id, type, input, queue, priority, status, reason, wake_at, deadline, created_at, idempotency_key, parent_id,
   parent_location, write_id, close_by, max_attempts, options)
VALUES :rows
"""


async def create_new(tx: MysqlTransaction, runs: Sequence[NewRun]) -> list[CreatedRun]:
    """Create them all. Raises `AlreadyThere` if one is there."""
    if not runs:
        return []
    for new in runs:
        tx.note(new.id, *of_created(new))
    tx.begin()
    tx.insert(NEW_RUNS, rows_of(runs, tx.now))
    tx.write_notes()
    await tx.commit()
    tx.stir(Change.READY)
    return [CreatedRun(as_run(new, tx.now), True) for new in runs]


def rows_of(runs: Sequence[NewRun], now: int) -> list[tuple[object, ...]]:
    """The rows of `NEW_RUNS`."""
    # In the order of their ids, so that two who create the same runs do not wait for each other crosswise.
    return [tuple(params_of(new, now).values()) for new in sorted(runs, key=lambda new: new.id)]
