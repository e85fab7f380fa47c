-- complete, version 1: complete a run with its result. A run that was asked to stop is cancelled, with the result as its
-- partial result.
-- :id, :token, :nonce: as `claim` returned them
-- :output: the result as JSON; NULL: null
-- Returns one row: outcome (applied; lost: another worker has the run, and nothing was written).
-- A repetition after a lost answer returns applied again.
BEGIN IMMEDIATE;
DROP TABLE IF EXISTS temp.perdure_asked;
CREATE TEMP TABLE perdure_asked AS
SELECT r.id, generation, parent_id, parent_location, m.seq IS NOT NULL AS stopped, COALESCE(json(:output), 'null') AS output,
  json_object('type', 'perdure.errors.RunCancelled', 'message', 'run ''' || r.id || ''' was cancelled'
    || COALESCE(': ' || NULLIF(CASE WHEN json_valid(m.payload) THEN json_extract(m.payload, '$') ELSE m.payload END, ''), ''),
    'partial', json(:output) || '') AS error,
  CAST(ROUND((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000 AS now
FROM perdure_runs r
LEFT JOIN perdure_messages m ON m.run_id = r.id AND m.seq > r.inbox_read AND m.kind = 'cancel'
WHERE r.id = :id AND token = :token AND nonce = :nonce AND status = 'running'
ORDER BY m.seq
LIMIT 1;
INSERT INTO perdure_messages (run_id, seq, kind, name, payload, failed, message_key, sent_at)
SELECT p.id, p.inbox_seq + 1, 'child', a.parent_location, CASE WHEN stopped THEN a.error ELSE a.output END, stopped,
  'child:' || a.id || ':' || a.generation, now
FROM temp.perdure_asked a
JOIN perdure_runs p ON p.id = a.parent_id
WHERE a.parent_location IS NOT NULL AND p.status NOT IN ('completed', 'failed', 'cancelled');
UPDATE perdure_runs
SET inbox_seq = inbox_seq + 1,
  wake_at = CASE WHEN status = 'waiting' AND started_at <> 0 AND reason <> 'paused' THEN now ELSE wake_at END,
  marked = CASE WHEN status = 'running' THEN 1 ELSE 0 END,
  status = CASE WHEN status = 'waiting' AND started_at <> 0 AND reason <> 'paused' THEN 'pending' ELSE status END,
  reason = CASE WHEN status = 'waiting' AND started_at <> 0 AND reason <> 'paused' THEN NULL ELSE reason END
FROM temp.perdure_asked a
WHERE changes() > 0 AND perdure_runs.id = a.parent_id;
INSERT INTO perdure_events (run_id, at, kind, actor, data)
SELECT id, now, CASE WHEN stopped THEN 'cancelled' ELSE 'completed' END, 'sql', CASE WHEN stopped THEN json_object(
    'error', json_extract(error, '$.type'), 'message', substr(json_extract(error, '$.message'), 1, 500)) ELSE '{}' END
FROM temp.perdure_asked;
UPDATE perdure_runs
SET status = CASE WHEN stopped THEN 'cancelled' ELSE 'completed' END, reason = NULL,
  output = CASE WHEN stopped THEN NULL ELSE a.output END, error = CASE WHEN stopped THEN a.error END, finished_at = now,
  worker = NULL, marked = 0, claims = 0, lease_until = 0
FROM temp.perdure_asked a
WHERE perdure_runs.id = a.id;
SELECT CASE WHEN EXISTS (SELECT 1 FROM perdure_runs WHERE id = :id AND token = :token AND nonce = :nonce)
  THEN 'applied' ELSE 'lost' END AS outcome;
COMMIT;
