"""Whether there is anything to sweep: one statement, so that idle workers cost the server next to nothing."""

from __future__ import annotations

from perdure.core.time.duration import FAR

#: The holders are leapt over along the index, so that the cost is one look a worker and not one a run.
ANYTHING = f"""
SELECT :now,
  EXISTS (SELECT 1 FROM perdure_workers WHERE status = 'alive' AND heartbeat_at + lease < :now)
  OR EXISTS (SELECT 1 FROM perdure_workers WHERE status <> 'alive' AND heartbeat_at < :now - :remembered)
  OR EXISTS (
    SELECT 1 FROM perdure_runs
    WHERE finished_at = 0 AND status IN ('pending', 'waiting') AND deadline < {FAR} AND deadline <= :now
  )
  OR EXISTS (SELECT 1 FROM perdure_singletons) OR EXISTS (SELECT 1 FROM perdure_successors)
  OR EXISTS (
    SELECT 1
    FROM (SELECT DISTINCT worker FROM perdure_runs WHERE status = 'running') holder
    LEFT JOIN perdure_workers w ON w.id = holder.worker AND w.status = 'alive'
    WHERE w.id IS NULL AND EXISTS (
      SELECT 1 FROM perdure_runs r FORCE INDEX (perdure_runs_held)
      WHERE r.status = 'running' AND r.worker = holder.worker AND r.lease_until <= :now
    )
  )
"""
