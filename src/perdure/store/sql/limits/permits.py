"""Permits: who has passed which gate, and counts there.

A permit for the time of a lease is good under one token only, so that whoever takes the run next needs another.
"""

from __future__ import annotations

from collections.abc import Sequence

from perdure.store.sql.dialect import Params, Transaction, placeholders
from perdure.store.sql.limits.gates import in_chunks

#: Permits of runs that are let go of: those for the time of a lease, and those of runs that have ended.
_FREED = """
SELECT p.run_id, p.gate, p.token
FROM perdure_permits p
JOIN perdure_runs r ON r.id = p.run_id
WHERE p.run_id IN ({names}) AND p.location = '' AND (p.hold = 'lease' OR r.status IN ('completed', 'failed', 'cancelled'))
"""
_RELEASE = """
DELETE FROM perdure_permits
WHERE gate = :gate AND run_id = :run_id AND location = '' AND token = :token
"""

_STALE = "DELETE FROM perdure_permits WHERE run_id IN ({names}) AND location = '' AND hold = 'lease'"

_PERMIT = """
INSERT INTO perdure_permits (gate, run_id, token, hold, granted_at)
VALUES (:gate, :run_id, :token, :hold, :now)
"""


async def permits_of(tx: Transaction, released: Sequence[tuple[str, int]]) -> list[tuple[str, str, int]]:
    """Run, gate and token of the permits that are no longer needed."""
    tokens = dict(released)
    return [
        (run_id, gate, token)
        for run_id, gate, token in await in_chunks(tx, _FREED, sorted(tokens))
        # Another one may have it by now, under a permit of its own.
        if token <= tokens[run_id]
    ]


async def release(tx: Transaction, permits: Sequence[tuple[str, str, int]]) -> None:
    """Give them back."""
    rows = [{"gate": gate, "run_id": run_id, "token": token} for run_id, gate, token in permits]
    await tx.execute_many(_RELEASE, rows)


async def grant(tx: Transaction, run_ids: Sequence[str], rows: Sequence[Params]) -> None:
    """Give runs their permits; those of earlier leases go."""
    for start in range(0, len(run_ids), 400):
        chosen, params = placeholders("name", run_ids[start : start + 400])
        await tx.execute(_STALE.replace("{names}", chosen), params)
    await tx.execute_many(_PERMIT, rows)
