-- fail, version 1: fail an attempt. Another attempt follows after a delay, unless all attempts are used up, none is
-- wanted, or the retry policy in the run's options gives up on errors of this type; then the run has failed. A run that
-- was asked to stop is cancelled.
-- :id, :token, :nonce: as `claim` returned them
-- :error_type: such as 'TimeoutError'
-- :error_message
-- :delay: microseconds until the next attempt; NULL: no further attempt
-- Returns one row: outcome (applied; lost: another worker has the run, and nothing was written), status (of the run,
-- afterwards).
-- A repetition after a lost answer returns applied again.
BEGIN IMMEDIATE;
DROP TABLE IF EXISTS temp.perdure_asked;
CREATE TEMP TABLE perdure_asked AS
SELECT id, type, token, attempt, started_at, generation, parent_id, parent_location, becomes, now, now + :delay AS again_at,
  json_object('type', COALESCE(:error_type, 'Exception'), 'message', COALESCE(:error_message, '')) AS error,
  CASE
    WHEN becomes = 'cancelled' THEN json_object(
      'type', 'perdure.errors.RunCancelled', 'message', 'run ''' || id || ''' was cancelled: ' || COALESCE(:error_message, '')
    )
    WHEN becomes = 'failed' THEN json_object(
      'type', COALESCE(:error_type, 'Exception'), 'message', COALESCE(:error_message, ''), 'given_up',
      CASE WHEN (:delay IS NULL OR gives_up) AND (max_attempts = 0 OR attempt < max_attempts) THEN 'fatal' ELSE 'exhausted' END
    )
    ELSE json_object('type', COALESCE(:error_type, 'Exception'), 'message', COALESCE(:error_message, ''))
  END AS outcome
FROM (
  SELECT r.*,
    CASE
      WHEN EXISTS (SELECT 1 FROM perdure_messages m WHERE m.run_id = r.id AND m.seq > r.inbox_read AND m.kind = 'cancel')
        THEN 'cancelled'
      WHEN :delay IS NULL OR gives_up OR (max_attempts > 0 AND attempt >= max_attempts) OR now + :delay >= deadline
        THEN 'failed'
      ELSE 'waiting'
    END AS becomes
  FROM (
    SELECT runs.*, CAST(ROUND((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000 AS now,
      CASE WHEN json_valid(options) THEN json_type(options, '$.retry.give_up_on') = 'array' AND EXISTS (
        SELECT 1 FROM json_each(options, '$.retry.give_up_on')
        WHERE value IN (
          COALESCE(:error_type, 'Exception'), substr(:error_type, length(rtrim(:error_type, replace(:error_type, '.', ''))) + 1)
        )
      ) END AS gives_up
    FROM perdure_runs runs
    WHERE id = :id AND token = :token AND nonce = :nonce AND status = 'running'
  ) r
);
INSERT INTO perdure_history
  (run_id, seq, token, kind, location, payload, failed, at, started_at, attempts, retry_at, run_attempt)
SELECT id, COALESCE((SELECT MAX(h.seq) FROM perdure_history h WHERE h.run_id = a.id), -1) + 1, token, 'attempt', type, error, 1,
  MAX(now, COALESCE((SELECT h.at FROM perdure_history h WHERE h.run_id = a.id ORDER BY h.seq DESC LIMIT 1), 0)), started_at,
  attempt, again_at, attempt
FROM temp.perdure_asked a
WHERE becomes = 'waiting';
INSERT INTO perdure_messages (run_id, seq, kind, name, payload, failed, message_key, sent_at)
SELECT p.id, p.inbox_seq + 1, 'child', a.parent_location, a.outcome, 1, 'child:' || a.id || ':' || a.generation, now
FROM temp.perdure_asked a
JOIN perdure_runs p ON p.id = a.parent_id
WHERE becomes <> 'waiting' AND a.parent_location IS NOT NULL AND p.status NOT IN ('completed', 'failed', 'cancelled');
UPDATE perdure_runs
SET inbox_seq = inbox_seq + 1,
  wake_at = CASE WHEN status = 'waiting' AND perdure_runs.started_at <> 0 AND reason <> 'paused' THEN now ELSE wake_at END,
  marked = CASE WHEN status = 'running' THEN 1 ELSE 0 END,
  status = CASE WHEN status = 'waiting' AND perdure_runs.started_at <> 0 AND reason <> 'paused' THEN 'pending' ELSE status END,
  reason = CASE WHEN status = 'waiting' AND perdure_runs.started_at <> 0 AND reason <> 'paused' THEN NULL ELSE reason END
FROM temp.perdure_asked a
WHERE changes() > 0 AND perdure_runs.id = a.parent_id AND becomes <> 'waiting';
UPDATE perdure_runs
SET status = CASE WHEN becomes = 'waiting' AND again_at <= now THEN 'pending' ELSE becomes END,
  reason = CASE WHEN becomes = 'waiting' AND again_at > now THEN 'retry' END,
  wake_at = CASE WHEN becomes = 'waiting' THEN again_at ELSE wake_at END,
  attempt = CASE WHEN becomes = 'waiting' THEN a.attempt + 1 ELSE a.attempt END,
  started_at = CASE WHEN becomes = 'waiting' THEN 0 ELSE a.started_at END,
  output = NULL, error = a.outcome, finished_at = CASE WHEN becomes = 'waiting' THEN 0 ELSE now END, worker = NULL, marked = 0,
  claims = 0, lease_until = 0
FROM temp.perdure_asked a
WHERE perdure_runs.id = a.id;
INSERT INTO perdure_events (run_id, at, kind, actor, data)
SELECT id, now, CASE WHEN becomes = 'waiting' THEN 'retried' ELSE becomes END, 'sql',
  CASE WHEN becomes = 'waiting'
    THEN json_object('attempt', attempt + 1, 'at', again_at, 'error', json_extract(outcome, '$.type'), 'message',
      substr(json_extract(outcome, '$.message'), 1, 500))
    ELSE json_object('error', json_extract(outcome, '$.type'), 'message', substr(json_extract(outcome, '$.message'), 1, 500))
  END
FROM temp.perdure_asked;
SELECT CASE WHEN EXISTS (SELECT 1 FROM perdure_runs WHERE id = :id AND token = :token AND nonce = :nonce)
    THEN 'applied' ELSE 'lost' END AS outcome,
  (SELECT status FROM perdure_runs WHERE id = :id) AS status;
COMMIT;
