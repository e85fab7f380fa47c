-- release, version 1: give a run back unchanged, for any worker to claim at once. No attempt is used up.
-- :id, :token, :nonce: as `claim` returned them
-- Returns one row: outcome (applied; lost: it was given back already, or another worker has it).
BEGIN IMMEDIATE;
UPDATE perdure_runs
SET status = 'pending', reason = NULL, token = token + 1,
  wake_at = CAST(ROUND((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000, worker = NULL, home = NULL, marked = 0, claims = 0,
  lease_until = 0
WHERE id = :id AND token = :token AND nonce = :nonce AND status = 'running';
INSERT INTO perdure_events (run_id, at, kind, actor, data)
SELECT id, wake_at, 'released', 'sql', json_object('token', token)
FROM perdure_runs
WHERE id = :id AND changes() > 0;
SELECT CASE WHEN changes() > 0 THEN 'applied' ELSE 'lost' END AS outcome;
COMMIT;
