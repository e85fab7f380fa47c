"""Loading many runs with one query for each kind of row."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.core.model.claim import LoadedRun
from perdure.core.model.record import Message, Record
from perdure.core.model.run import Run
from perdure.store.postgres.transaction import PostgresTransaction
from perdure.store.sql.reads import check_whole, inbox
from perdure.store.sql.rows import MESSAGE, RECORD, RUN, to_message, to_record, to_run

_RUNS = f"SELECT {RUN} FROM perdure_runs WHERE id = ANY($1::text[])"

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


async def runs(tx: PostgresTransaction, run_ids: Sequence[str]) -> list[Run]:
    """Those that exist."""
    return [to_run(row) for row in await tx.run(_RUNS, run_ids)]


async def load(tx: PostgresTransaction, run_ids: Sequence[str], page: int) -> list[LoadedRun]:
    """Runs with their histories and a page of what is unread."""
    found = await runs(tx, run_ids)
    records: dict[str, list[Record]] = {run.id: [] for run in found}
    for run_id, *row in await tx.run(_HISTORIES, run_ids):
        records[run_id].append(to_record(tuple(row)))
    unread: dict[str, list[Message]] = {run.id: [] for run in found}
    # Few have more than a page; the one statement for all others has no limit that would leave the planner a choice.
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
