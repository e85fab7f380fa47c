"""Loading many runs in one round trip, as of one moment."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.core.model.claim import LoadedRun
from perdure.core.model.record import Message, Record
from perdure.store.mysql.literals import listed
from perdure.store.mysql.transaction import MysqlTransaction
from perdure.store.sql.reads import check_whole
from perdure.store.sql.rows import MESSAGE, RECORD, RUN, to_message, to_record, to_run

#: The next transaction only. Its first query takes the snapshot that the others read, too.
SNAPSHOT = ("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ", "START TRANSACTION READ ONLY")

_RUNS = f"SELECT {RUN} FROM perdure_runs WHERE id IN (:ids)"

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


async def load(tx: MysqlTransaction, run_ids: Sequence[str], page: int) -> list[LoadedRun]:
    """Runs with their histories and a page of what is unread."""
    ids = listed(run_ids)
    tx.connection.in_transaction = True
    tx.later(*SNAPSHOT)
    queries = [tx.text(template, ids=ids) for template in (_RUNS, _HISTORIES)]
    queries.append(tx.text(_UNREAD, ids=ids, page=page))
    runs, histories, messages, _ = await tx.send(*queries, "COMMIT")
    tx.connection.in_transaction = False
    records: dict[str, list[Record]] = {}
    for run_id, *row in histories.rows:
        records.setdefault(run_id, []).append(to_record(tuple(row)))
    unread: dict[str, list[Message]] = {}
    for message in map(to_message, messages.rows):
        unread.setdefault(message.run_id, []).append(message)
    loaded: list[LoadedRun] = []
    for run in map(to_run, runs.rows):
        history = tuple(records.get(run.id, ()))
        check_whole(run.id, history)
        loaded.append(LoadedRun(run=run, records=history, inbox=tuple(unread.get(run.id, ()))))
    return loaded
