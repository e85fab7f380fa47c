"""Create and load runs on MySQL and MariaDB, many in one round trip.

A run whose id or key is taken fails the packet before its COMMIT; the shared verb then finds out which.
"""

from __future__ import annotations

from collections.abc import Sequence

from perdure.core.model.claim import LoadedRun
from perdure.core.model.record import Message
from perdure.core.model.run import CreatedRun, NewRun
from perdure.store.contract import Change
from perdure.store.mysql.transaction import MysqlTransaction, sql_list
from perdure.store.sql.audit import created_event
from perdure.store.sql.reads import check_whole
from perdure.store.sql.rows import MESSAGE, RECORD, SHOWN_RUN, to_histories, to_message, to_run
from perdure.store.sql.runs.create import as_run, params_of

NEW_RUNS = """
INSERT INTO perdure_runs
  (id, type, input, queue, priority, status, reason, wake_at, deadline, created_at, idempotency_key, parent_id,
   parent_location, write_id, close_by, max_attempts, options)
VALUES :rows
"""


async def create_new_runs(tx: MysqlTransaction, runs: Sequence[NewRun]) -> list[CreatedRun]:
    """Create all of the runs. Raises `AlreadyThere` if one exists."""
    if not runs:
        return []
    for new in runs:
        tx.note(new.id, *created_event(new))
    tx.begin()
    tx.insert(NEW_RUNS, rows_of(runs, tx.now))
    tx.write_notes()
    await tx.commit()
    tx.notify(Change.READY)
    return [CreatedRun(as_run(new, tx.now), True) for new in runs]


def rows_of(runs: Sequence[NewRun], now: int) -> list[tuple[object, ...]]:
    """Return the rows for `NEW_RUNS`."""
    # In the order of ids, so that two transactions that create the same runs do not deadlock.
    return [tuple(params_of(new, now).values()) for new in sorted(runs, key=lambda new: new.id)]


#: Affects the next transaction only, whose first query takes the snapshot for all.
SNAPSHOT = ("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ", "START TRANSACTION READ ONLY")

_RUNS = f"SELECT {SHOWN_RUN} FROM perdure_runs WHERE id IN (:ids)"

_HISTORIES = f"""
SELECT run_id, {RECORD}
FROM perdure_history
WHERE run_id IN (:ids)
ORDER BY run_id, seq
"""

_UNREAD = f"""
SELECT {", ".join("m." + column for column in MESSAGE.split(", "))}
FROM perdure_runs r
JOIN perdure_messages m ON m.run_id = r.id AND m.seq > r.inbox_read AND m.seq <= r.inbox_read + :page
WHERE r.id IN (:ids) AND r.inbox_seq > r.inbox_read AND m.consumed = 0
ORDER BY m.run_id, m.seq
"""


async def load_runs(tx: MysqlTransaction, run_ids: Sequence[str], page: int) -> list[LoadedRun]:
    """Return runs with their histories and one page of unread messages each."""
    ids = sql_list(run_ids)
    tx.connection.in_transaction = True
    tx.enqueue(*SNAPSHOT)
    queries = [tx.fill(template, ids=ids) for template in (_RUNS, _HISTORIES)]
    queries.append(tx.fill(_UNREAD, ids=ids, page=page))
    runs, histories, messages, _ = await tx.send(*queries, "COMMIT")
    tx.connection.in_transaction = False
    records = to_histories(histories.rows)
    unread: dict[str, list[Message]] = {}
    for message in map(to_message, messages.rows):
        unread.setdefault(message.run_id, []).append(message)
    loaded: list[LoadedRun] = []
    for run in map(to_run, runs.rows):
        history = tuple(records.get(run.id, ()))
        check_whole(run.id, history)
        loaded.append(LoadedRun(run=run, records=history, inbox=tuple(unread.get(run.id, ()))))
    return loaded
