"""Packed histories: one row holds many records of the old part of a long history.

The row of kind `packed` replaces consecutive records. It has the number, token and time of the last one, so that the
order of rows and tokens stays what it was, and counts its records in `attempts`. Every reader of records unpacks it
(`store/sql/rows.py`); only a query that counts rows or looks for a kind can tell the difference.

Only records that no statement looks for are packed: results of steps and timers. Records with an inbox entry, failed
ones and failed attempts are found by their columns, and records inside of scopes are trimmed one by one.

A packable record never changes, so a holder that has lost its lease could do no harm. The lease is checked all the
same, and the lock on the run's row prevents two packings at once. No row is inserted, so that nothing is left of a run
that is deleted or continued as new meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from perdure.core.codec.decoders import decoder_for
from perdure.core.model.record import Record, RecordKind
from perdure.core.model.turn import Lease
from perdure.store.sql.dialect import Params, Row, Transaction

#: Kind of the row, which no record has.
PACKED = "packed"

#: Records that one row holds at most.
SEGMENT = 1000

#: Characters of one row's payload, about; and of a result that is packed. A longer one stays a row.
_SEGMENT_SIZE = 256 * 1024
_LONGEST = 16 * 1024

#: Rows that one transaction makes at most: sequences that are too short stay as they are.
_MOST_SEGMENTS = 100

#: Characters that a record takes in a row besides its payload, about.
_OVERHEAD = 100

#: Kind, location, payload, at, started_at, digest and attempts of a record.
_Fields = tuple[str, str, str | None, int, int, str, int]

_decoder = decoder_for(list[_Fields])
_KINDS = {kind.value: kind for kind in (RecordKind.STEP, RecordKind.TIMER)}

_HELD = """
SELECT 1
FROM perdure_runs
WHERE id = :run_id AND token = :token AND nonce = :nonce AND status = 'running'
{for_update}
"""

_PACKABLE = f"""
SELECT seq, run_attempt, kind, location, payload, at, started_at, digest, attempts
FROM perdure_history
WHERE run_id = :run_id AND seq BETWEEN :first AND :last AND kind IN ('step', 'timer') AND failed = 0
  AND inbox_seq = 0 AND retry_at = 0 AND (payload IS NULL OR {{size payload}} <= {_LONGEST})
ORDER BY run_id, seq
"""

_REPLACE_LAST = f"""
UPDATE perdure_history
SET kind = '{PACKED}', location = '', payload = :payload, started_at = 0, digest = '', attempts = :count
WHERE run_id = :run_id AND seq = :last
"""

_DELETE_OTHERS = """
DELETE FROM perdure_history
WHERE run_id = :run_id AND seq BETWEEN :first AND :before
"""


async def pack(tx: Transaction, lease: Lease, first: int, last: int) -> bool:
    """Pack the packable ones of these records of a held run; False: the lease was lost."""
    proof = {"run_id": lease.run_id, "token": lease.token, "nonce": lease.nonce}
    if not await tx.fetch(_HELD, proof):
        return False
    rows = await tx.fetch(_PACKABLE, {"run_id": lease.run_id, "first": first, "last": last})
    fewest = max(2, (last - first + 1) // _MOST_SEGMENTS)
    segments = [segment for segment in _segments(rows) if len(segment) >= fewest]
    await tx.execute_many(_REPLACE_LAST, [_packed(lease.run_id, segment) for segment in segments])
    others = [{"run_id": lease.run_id, "first": segment[0][0], "before": segment[-1][0] - 1} for segment in segments]
    await tx.execute_many(_DELETE_OTHERS, others)
    return True


def _packed(run_id: str, segment: Sequence[Row]) -> Params:
    payload = msgspec.json.encode([row[2:] for row in segment]).decode()
    return {"run_id": run_id, "last": segment[-1][0], "payload": payload, "count": len(segment)}


def unpack(seq: int, payload: str, count: int, run_attempt: int) -> list[Record]:
    """Return the records of a packed row. Raises `ValueError` for an invalid row."""
    fields = _decoder.decode(payload)
    if len(fields) != count:
        raise ValueError(f"it has {len(fields)} records instead of {count}")
    records: list[Record] = []
    number = seq - count
    try:
        for kind, location, result, at, started_at, digest, attempts in fields:
            number += 1
            records.append(
                Record(
                    seq=number, kind=_KINDS[kind], location=location, payload=result, at=at, started_at=started_at,
                    digest=digest, attempts=attempts, run_attempt=run_attempt,
                )
            )  # fmt: skip
    except KeyError as unknown:
        raise ValueError(f"its record {number} is of the unknown kind {unknown}") from unknown
    return records


def _segments(rows: Iterable[Row]) -> Iterator[Sequence[Row]]:
    """Divide rows into sequences for one row each: consecutive, of one attempt at the run, and not too large."""
    segment: list[Row] = []
    size = 0
    for row in rows:
        seq, run_attempt, _, location, payload, *_ = row
        if _is_in_scope(location):
            continue
        length = _OVERHEAD + len(location) + len(payload or "")
        if segment and (
            seq != segment[-1][0] + 1
            or run_attempt != segment[-1][1]
            or len(segment) == SEGMENT
            or size + length > _SEGMENT_SIZE
        ):
            yield segment
            segment, size = [], 0
        segment.append(row)
        size += length
    if segment:
        yield segment


def _is_in_scope(location: str) -> bool:
    return "/" in location
