-- complete, version 1: complete a run with its result.
-- :id, :token, :nonce: as `claim` returned them
-- :output: the result as JSON; NULL: null
-- Returns one row: outcome (applied; lost: another worker has the run, and nothing was written).
-- A repetition after a lost answer returns applied again.
BEGIN IMMEDIATE;
INSERT INTO perdure_messages (run_id, seq, kind, name, payload, failed, message_key, sent_at)
SELECT p.id, p.inbox_seq + 1, 'child', r.parent_location, COALESCE(json(:output), 'null'), 0,
  'child:' || r.id || ':' || r.generation, CAST(ROUND((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000
FROM perdure_runs r
JOIN perdure_runs p ON p.id = r.parent_id
WHERE r.id = :id AND r.token = :token AND r.nonce = :nonce AND r.status = 'running' AND r.parent_location IS NOT NULL
  AND p.status NOT IN ('completed', 'failed', 'cancelled');
UPDATE perdure_runs
SET inbox_seq = inbox_seq + 1,
  wake_at = CASE WHEN status = 'waiting' AND started_at <> 0 AND reason <> 'paused'
    THEN CAST(ROUND((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000 ELSE wake_at END,
  marked = CASE WHEN status = 'running' THEN 1 ELSE 0 END,
  status = CASE WHEN status = 'waiting' AND started_at <> 0 AND reason <> 'paused' THEN 'pending' ELSE status END,
  reason = CASE WHEN status = 'waiting' AND started_at <> 0 AND reason <> 'paused' THEN NULL ELSE reason END
WHERE changes() > 0 AND id = (SELECT r.parent_id FROM perdure_runs r WHERE r.id = :id);
INSERT INTO perdure_events (run_id, at, kind, actor)
SELECT id, CAST(ROUND((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000, 'completed', 'sql'
FROM perdure_runs
WHERE id = :id AND token = :token AND nonce = :nonce AND status = 'running';
UPDATE perdure_runs
SET status = 'completed', reason = NULL, output = COALESCE(json(:output), 'null'), error = NULL,
  finished_at = CAST(ROUND((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000, worker = NULL, marked = 0, claims = 0,
  lease_until = 0
WHERE id = :id AND token = :token AND nonce = :nonce AND status = 'running';
SELECT CASE WHEN EXISTS (SELECT 1 FROM perdure_runs WHERE id = :id AND token = :token AND nonce = :nonce)
  THEN 'applied' ELSE 'lost' END AS outcome;
COMMIT;
