-- cancel, version 1: ask a run to stop. A run that has not begun is cancelled at once; others find the
-- request in their inbox.
-- $1 id: text
-- $2 reason: text, free text; NULL: none
-- $3 key: text, unique for this request, so that it can be repeated after a lost answer; NULL: a random one
-- Returns one row: outcome (accepted; duplicate: accepted before under that key; finished; unknown; blocked: it was
-- set aside, and `perdure cancel` has to stop its children, too), status (of the run, afterwards).
WITH asked AS MATERIALIZED (
  SELECT r.*, now, key, status <> 'running' AND started_at = 0 AND attempt = 1 AS ends, COALESCE($2::text, '') AS why,
    EXISTS (SELECT 1 FROM perdure_messages m WHERE m.run_id = r.id AND m.message_key = key) AS known
  FROM perdure_runs r, (
    SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now, COALESCE($3::text, gen_random_uuid()::text) AS key
  ) request
  WHERE id = $1::text
  FOR NO KEY UPDATE OF r
), target AS MATERIALIZED (
  SELECT *, 'run ''' || id || ''' was cancelled before it could go on' || COALESCE(': ' || NULLIF(why, ''), '') AS message
  FROM asked WHERE NOT known AND status IN ('pending', 'running', 'waiting')
), ended AS MATERIALIZED (
  SELECT *, json_build_object('type', 'perdure.errors.RunCancelled', 'message', message)::text AS failure FROM target WHERE ends
), parent AS MATERIALIZED (
  SELECT p.*, ended.id AS child, ended.generation AS life, ended.parent_location AS place, now, failure,
    p.status = 'waiting' AND p.started_at <> 0 AND p.reason IS DISTINCT FROM 'paused' AS wakes
  FROM ended JOIN perdure_runs p ON p.id = ended.parent_id AND ended.parent_location IS NOT NULL
  WHERE p.status NOT IN ('completed', 'failed', 'cancelled') FOR NO KEY UPDATE OF p
), entries AS (
  INSERT INTO perdure_messages (run_id, seq, kind, name, payload, failed, message_key, sent_at)
  SELECT id, inbox_seq + 1, 'cancel', '', to_json(why)::text, 0, key, now FROM target
  UNION ALL SELECT id, inbox_seq + 1, 'child', place, failure, 1, 'child:' || child || ':' || life, now FROM parent
), noted AS (
  INSERT INTO perdure_events (run_id, at, kind, actor, data)
  SELECT id, created_at, 'created', 'sql', json_build_object('type', type)::text FROM ended
  WHERE write_id = '' AND NOT EXISTS (SELECT 1 FROM perdure_events e WHERE e.run_id = ended.id AND e.kind = 'created')
  UNION ALL SELECT id, now, 'cancel_requested', 'sql', json_build_object('reason', why)::text FROM target
  UNION ALL SELECT id, now, 'cancelled', 'sql',
    json_build_object('error', 'perdure.errors.RunCancelled', 'message', left(message, 500))::text FROM ended
), told AS (
  UPDATE perdure_runs r SET inbox_seq = r.inbox_seq + 1, marked = (p.status = 'running')::int,
    status = CASE WHEN wakes THEN 'pending' ELSE p.status END, reason = CASE WHEN NOT wakes THEN p.reason END,
    wake_at = CASE WHEN wakes THEN now ELSE p.wake_at END
  FROM parent p WHERE r.id = p.id
), changed AS (
  UPDATE perdure_runs r SET inbox_seq = r.inbox_seq + 1, marked = (t.status = 'running')::int,
    status = CASE WHEN ends THEN 'cancelled' WHEN t.status = 'waiting' THEN 'pending' ELSE t.status END, reason = NULL,
    wake_at = CASE WHEN t.status = 'waiting' THEN now ELSE t.wake_at END, error = COALESCE(failure, t.error),
    finished_at = CASE WHEN ends THEN now ELSE 0 END, claims = CASE WHEN ends THEN 0 ELSE t.claims END,
    close_by = CASE WHEN ends THEN 0 ELSE t.close_by END
  FROM target t LEFT JOIN (SELECT id, failure FROM ended) e USING (id) WHERE r.id = t.id RETURNING r.status
)
SELECT COALESCE((SELECT CASE WHEN known THEN 'duplicate' WHEN status = 'blocked' THEN status
      WHEN status IN ('pending', 'running', 'waiting') THEN 'accepted' ELSE 'finished' END FROM asked), 'unknown') AS outcome,
  COALESCE((SELECT status FROM changed), (SELECT status FROM asked)) AS status;
