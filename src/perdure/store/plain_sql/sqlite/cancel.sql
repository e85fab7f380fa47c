-- cancel, version 1: ask a run to stop. A run that has not begun is cancelled at once; others find the
-- request in their inbox.
-- :id
-- :reason: free text; NULL: none
-- :key: unique for this request, so that it can be repeated after a lost answer; NULL: a random one
-- Returns one row: outcome (accepted; duplicate: accepted before under that key; finished; unknown; blocked: it was
-- set aside, and `perdure cancel` has to stop its children, too), status (of the run, afterwards).
BEGIN IMMEDIATE;
DROP TABLE IF EXISTS temp.perdure_asked;
CREATE TEMP TABLE perdure_asked AS
SELECT id, parent_id, parent_location, generation, key, now, COALESCE(:reason, '') AS why,
  CASE
    WHEN EXISTS (SELECT 1 FROM perdure_messages m WHERE m.run_id = r.id AND m.message_key = key) THEN 'duplicate'
    WHEN status IN ('completed', 'failed', 'cancelled') THEN 'finished'
    WHEN status = 'blocked' THEN 'blocked'
    ELSE 'accepted'
  END AS outcome,
  status IN ('pending', 'waiting') AND started_at = 0 AND attempt = 1 AS at_once,
  json_object(
    'type', 'perdure.errors.RunCancelled',
    'message', 'run ''' || id || ''' was cancelled before it could go on' || COALESCE(': ' || NULLIF(:reason, ''), '')
  ) AS error
FROM perdure_runs r, (
  SELECT COALESCE(:key, lower(hex(randomblob(16)))) AS key,
    CAST(ROUND((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000 AS now
)
WHERE id = :id;
INSERT INTO perdure_messages (run_id, seq, kind, name, payload, failed, message_key, sent_at)
SELECT r.id, r.inbox_seq + 1, 'cancel', '', json_quote(why), 0, key, now
FROM temp.perdure_asked a
JOIN perdure_runs r ON r.id = a.id
WHERE outcome = 'accepted';
INSERT INTO perdure_messages (run_id, seq, kind, name, payload, failed, message_key, sent_at)
SELECT p.id, p.inbox_seq + 1, 'child', a.parent_location, a.error, 1, 'child:' || a.id || ':' || a.generation, now
FROM temp.perdure_asked a
JOIN perdure_runs p ON p.id = a.parent_id
WHERE outcome = 'accepted' AND at_once AND a.parent_location IS NOT NULL AND p.status NOT IN ('completed', 'failed', 'cancelled');
UPDATE perdure_runs
SET inbox_seq = inbox_seq + 1,
  wake_at = CASE WHEN status = 'waiting' AND started_at <> 0 AND reason <> 'paused' THEN now ELSE wake_at END,
  marked = CASE WHEN status = 'running' THEN 1 ELSE 0 END,
  status = CASE WHEN status = 'waiting' AND started_at <> 0 AND reason <> 'paused' THEN 'pending' ELSE status END,
  reason = CASE WHEN status = 'waiting' AND started_at <> 0 AND reason <> 'paused' THEN NULL ELSE reason END
FROM temp.perdure_asked a
WHERE changes() > 0 AND perdure_runs.id = a.parent_id AND at_once AND outcome = 'accepted';
UPDATE perdure_runs
SET inbox_seq = inbox_seq + 1,
  status = CASE WHEN at_once THEN 'cancelled' WHEN status = 'waiting' THEN 'pending' ELSE status END,
  reason = CASE WHEN at_once OR status = 'waiting' THEN NULL ELSE reason END,
  wake_at = CASE WHEN status = 'waiting' THEN now ELSE wake_at END,
  marked = CASE WHEN status = 'running' THEN 1 ELSE 0 END,
  error = CASE WHEN at_once THEN a.error ELSE perdure_runs.error END,
  finished_at = CASE WHEN at_once THEN now ELSE 0 END,
  claims = CASE WHEN at_once THEN 0 ELSE claims END,
  close_by = CASE WHEN at_once THEN 0 ELSE close_by END
FROM temp.perdure_asked a
WHERE perdure_runs.id = a.id AND outcome = 'accepted';
INSERT INTO perdure_events (run_id, at, kind, actor, data)
SELECT r.id, r.created_at, 'created', 'sql', json_object('type', r.type)
FROM temp.perdure_asked a
JOIN perdure_runs r ON r.id = a.id
WHERE outcome = 'accepted' AND at_once AND r.write_id = ''
  AND NOT EXISTS (SELECT 1 FROM perdure_events e WHERE e.run_id = r.id AND e.kind = 'created');
INSERT INTO perdure_events (run_id, at, kind, actor, data)
SELECT id, now, 'cancel_requested', 'sql', json_object('reason', why)
FROM temp.perdure_asked
WHERE outcome = 'accepted';
INSERT INTO perdure_events (run_id, at, kind, actor, data)
SELECT id, now, 'cancelled', 'sql', json_object(
    'error', json_extract(error, '$.type'), 'message', substr(json_extract(error, '$.message'), 1, 500)
  )
FROM temp.perdure_asked
WHERE outcome = 'accepted' AND at_once;
SELECT COALESCE((SELECT outcome FROM temp.perdure_asked), 'unknown') AS outcome,
  (SELECT status FROM perdure_runs WHERE id = :id) AS status;
COMMIT;
