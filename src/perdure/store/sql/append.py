"""One record, and what its step emitted, written on a transaction that holds other people's writes too.

The run's row is locked and the lease checked on it; only then does the record go in. Whoever later wants to know what became of
a transaction whose answer was lost asks under the same lock, which it held until it ended.
"""

from __future__ import annotations

from msgspec import Struct

from perdure.core.model.run import Status, Turn, Verdict
from perdure.errors import StoreCorrupt
from perdure.store.sql.dialect import Transaction
from perdure.store.sql.runs.outputs import write_outputs
from perdure.store.sql.turn import record_row

#: Of a record, in the order of `record_row`.
COLUMNS = (
    "run_id", "seq", "token", "kind", "location", "payload", "failed", "at", "started_at", "digest", "attempts",
    "retry_at", "inbox_seq", "run_attempt",
)  # fmt: skip

_FENCE = """
SELECT status, token, nonce
FROM perdure_runs
WHERE id = :run_id{fence}
{for_update}
"""

#: Where several servers take writes, a lock on one is no concern of the others; only rows that are written are compared.
_PROVE = """
UPDATE perdure_runs
SET wake_at = wake_at + 1
WHERE id = :run_id
"""

RECORD = f"""
INSERT INTO perdure_history ({", ".join(COLUMNS)})
VALUES ({", ".join(f":{column}" for column in COLUMNS)})
"""

_THERE = f"""
SELECT {", ".join(COLUMNS)}
FROM perdure_history
WHERE run_id = :run_id AND seq = :seq
"""


class Fence(Struct, frozen=True):
    """What it takes to prove a lease besides the lock of the run's row."""

    #: Holds on the server on which the worker's life began only; empty where there is no such condition.
    condition: str = ""
    #: Several servers take writes, so that the row that was locked has to be written.
    written: bool = False


NO_FENCE = Fence()


async def append(tx: Transaction, turn: Turn, fence: Fence = NO_FENCE) -> Verdict:
    """Write the one record of a turn and its outputs, if its lease holds: APPLIED, or LOST."""
    if not await _holds(tx, turn, fence.condition):
        return Verdict.LOST
    if fence.written:
        await tx.execute(_PROVE, {"run_id": turn.lease.run_id})
    [record] = turn.records
    await tx.execute(RECORD, dict(zip(COLUMNS, record_row(turn, record), strict=True)))
    if turn.outputs:
        await write_outputs(tx, [(turn.lease.run_id, output) for output in turn.outputs])
    return Verdict.APPLIED


async def recorded(tx: Transaction, turn: Turn) -> Verdict:
    """What became of such a turn: APPLIED, LOST, or BUSY: it is not there, and its lease holds, so it may be tried again."""
    holds = await _holds(tx, turn)
    [record] = turn.records
    there = await tx.fetch(_THERE, {"run_id": turn.lease.run_id, "seq": record.seq})
    if there and there[0] == record_row(turn, record):
        return Verdict.APPLIED
    if there and holds and there[0][2] < turn.lease.token:
        # A former holder wrote it after the history was loaded.
        return Verdict.LOST
    if there and holds:
        raise StoreCorrupt(
            f"The history of run {turn.lease.run_id!r} has another record than its worker wrote at number {record.seq}. Look at "
            "the run's history and release it."
        )
    return Verdict.BUSY if holds else Verdict.LOST


async def _holds(tx: Transaction, turn: Turn, condition: str = "") -> bool:
    lease = turn.lease
    rows = await tx.fetch(_FENCE.replace("{fence}", condition), {"run_id": lease.run_id})
    return bool(rows) and tuple(rows[0]) == (Status.RUNNING.value, lease.token, lease.nonce)
