"""Whether there is anything to sweep, and whether anybody died lately.

One statement, so that idle workers cost the server next to nothing.
"""

from __future__ import annotations

from perdure.core.model import FAR
from perdure.store.postgres.dialect import NOW
from perdure.store.postgres.sessions import LATELY

#: Leaps from holder to holder along the index, so that the cost is one look a worker and not one a run.
ANYTHING = f"""
WITH RECURSIVE clock AS MATERIALIZED (
  SELECT COALESCE($1::bigint, {NOW}) AS now
), holder (worker) AS (
  SELECT MIN(worker) FROM perdure_runs WHERE status = 'running'
  UNION ALL
  SELECT (SELECT MIN(r.worker) FROM perdure_runs r WHERE r.status = 'running' AND r.worker > holder.worker)
  FROM holder
  WHERE holder.worker IS NOT NULL
)
SELECT clock.now,
  EXISTS (SELECT 1 FROM perdure_workers WHERE status = 'alive' AND heartbeat_at + lease < clock.now)
  OR EXISTS (SELECT 1 FROM perdure_workers WHERE status <> 'alive' AND heartbeat_at < clock.now - $2::bigint)
  OR EXISTS (
    SELECT 1 FROM perdure_runs
    WHERE status IN ('pending', 'waiting') AND deadline < {FAR} AND deadline <= clock.now
  )
  OR EXISTS (SELECT 1 FROM perdure_singletons) OR EXISTS (SELECT 1 FROM perdure_successors)
  OR EXISTS (
    SELECT 1 FROM holder
    WHERE holder.worker IS NOT NULL
      AND NOT EXISTS (SELECT 1 FROM perdure_workers w WHERE w.id = holder.worker AND w.status = 'alive')
      AND EXISTS (
        SELECT 1 FROM perdure_runs r
        WHERE r.status = 'running' AND r.worker = holder.worker AND r.lease_until <= clock.now
        ORDER BY r.worker, r.nonce, r.id
        LIMIT 1
      )
  ),
  EXISTS (SELECT 1 FROM perdure_workers WHERE status = 'dead' AND heartbeat_at > clock.now - {LATELY})
FROM clock
"""
