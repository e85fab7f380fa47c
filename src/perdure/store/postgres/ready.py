"""Claiming where ready runs are all there is to it: no timers that are due, nothing suspicious, no answer that was lost.

One statement, so that nothing stays locked any longer than it takes. With several types it locks more rows than it takes, for
that moment; whoever comes by meanwhile and finds nothing looks again soon.
"""

from __future__ import annotations

from collections.abc import Callable

from perdure.core.model import Claimed, ClaimRequest
from perdure.store.postgres.claim import FREE, MOMENT, OF_RUN, PAIRS, TAKEN, Seen, free, to_runs
from perdure.store.postgres.transaction import PostgresTransaction

#: Choosing and taking at once. The second pass leaves out what the first has, and only follows one that found enough.
TAKE_READY = f"""
WITH first AS MATERIALIZED (
  SELECT one.priority, one.wake_at, one.id
  FROM {PAIRS}
  CROSS JOIN LATERAL (
    SELECT r.priority, r.wake_at, r.id
    FROM perdure_runs r
    WHERE {FREE}
    ORDER BY r.priority, r.wake_at, r.id
    LIMIT $8
    FOR NO KEY UPDATE SKIP LOCKED
  ) one
  ORDER BY one.priority, one.wake_at, one.id
  LIMIT $8
), aged AS MATERIALIZED (
  SELECT one.wake_at, one.id
  FROM {PAIRS}
  CROSS JOIN LATERAL (
    SELECT r.wake_at, r.id
    FROM perdure_runs r
    WHERE {FREE} AND r.id <> ALL (ARRAY(SELECT id FROM first))
    ORDER BY r.wake_at, r.id
    LIMIT CASE WHEN (SELECT COUNT(*) FROM first) >= $8 THEN $9::bigint ELSE 0 END
    FOR NO KEY UPDATE SKIP LOCKED
  ) one
  ORDER BY one.wake_at, one.id
  LIMIT $9
), chosen AS MATERIALIZED (
  SELECT one.id AS run_id, one.place, ($11::text[])[one.place] AS fresh_seed,
    (SELECT MAX(h.seq) FROM perdure_history h WHERE h.run_id = one.id) AS last
  FROM (
    SELECT id, row_number() OVER (ORDER BY priority, wake_at, id) AS place FROM first
    UNION ALL
    SELECT id, $8::bigint + row_number() OVER (ORDER BY wake_at, id) FROM aged
  ) one
), taken AS (
  UPDATE perdure_runs r
  SET {TAKEN.format(worker="$5", nonce="$10", now="$3")}
  FROM chosen
  WHERE r.id = chosen.run_id
  RETURNING chosen.place, r.progress, {OF_RUN}
), noted AS (
  INSERT INTO perdure_events (run_id, at, kind, actor, data)
  SELECT id, $3, 'claimed', $5, '{{"token":' || token || '}}' FROM taken
)
SELECT * FROM taken ORDER BY place
"""


async def claim_ready(
    tx: PostgresTransaction, request: ClaimRequest, seen: Seen, entropy: Callable[[int], bytes]
) -> Claimed:
    """Take ready runs."""
    seeds = [entropy(16).hex() for _ in range(request.limit)]
    first = request.limit - request.by_age
    rows = await tx.run(TAKE_READY, *free(request, seen), first, request.by_age, request.nonce, seeds)
    next_wake = seen.next_wake
    if len(rows) < request.limit and seen.left is not None:
        next_wake = min(next_wake, seen.left + request.affinity)
    elif not rows:
        next_wake = min(next_wake, seen.now + MOMENT)
    return Claimed(runs=to_runs([row[1:] for row in rows]), next_wake=next_wake, suspects=False, now=seen.now)
