"""Deleting what runs no longer need, after everything else of their turns is in.

All of it is named by numbers, so that trimming twice is trimming once. Of an inbox only what was taken in goes.
"""

from __future__ import annotations

from collections.abc import Mapping

from perdure.core.model.outputs import Trim
from perdure.store.sql.dialect import Transaction

_RECORDS = """
DELETE FROM perdure_history
WHERE run_id = :run_id AND seq BETWEEN :first AND :last
"""

_INBOX = """
DELETE FROM perdure_messages
WHERE run_id = :run_id AND seq <= :upto AND consumed = 1
"""

#: The inner query is a table of its own because MySQL reads no table that it deletes from.
_EVENTS = """
DELETE FROM perdure_events
WHERE run_id = :run_id AND id < (
  SELECT MIN(id) FROM (SELECT id FROM perdure_events WHERE run_id = :run_id ORDER BY id DESC LIMIT :keep) AS newest
)
"""


async def trim(tx: Transaction, trims: Mapping[str, Trim]) -> None:
    """Trim runs, whose rows are locked."""
    records = [
        {"run_id": run_id, "first": first, "last": last} for run_id, one in trims.items() for first, last in one.records
    ]
    await tx.execute_many(_RECORDS, records)
    inboxes = [{"run_id": run_id, "upto": one.inbox} for run_id, one in trims.items() if one.inbox]
    await tx.execute_many(_INBOX, inboxes)
    for run_id, one in trims.items():
        if one.events:
            await tx.execute(_EVENTS, {"run_id": run_id, "keep": one.events})
