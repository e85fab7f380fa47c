-- cancel, version 1: ask a run to stop. A run that has not begun is cancelled at once; others find the
-- request in their inbox.
-- $1 id: text
-- $2 reason: text, free text; NULL: none
-- $3 key: text, unique for this request, so that it can be repeated after a lost answer; NULL: a random one
-- Returns one row: outcome (accepted; duplicate: accepted before under that key; finished; unknown; blocked: it was
-- set aside, and `perdure cancel` has to stop its children, too), status (of the run, afterwards).
WITH asked AS MATERIALIZED (
  SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now, COALESCE($2::text, '') AS reason,
    COALESCE($3::text, gen_random_uuid()::text) AS key
), target AS MATERIALIZED (
  SELECT id, status, reason, inbox_seq, started_at, attempt, generation, parent_id, parent_location
  FROM perdure_runs
  WHERE id = $1::text
  FOR NO KEY UPDATE
), verdict AS MATERIALIZED (
  SELECT
    CASE
      WHEN EXISTS (SELECT 1 FROM perdure_messages m WHERE m.run_id = target.id AND m.message_key = asked.key) THEN 'duplicate'
      WHEN status IN ('completed', 'failed', 'cancelled') THEN 'finished'
      WHEN status = 'blocked' THEN 'blocked'
      ELSE 'accepted'
    END AS outcome,
    status IN ('pending', 'waiting') AND started_at = 0 AND attempt = 1 AS at_once,
    json_build_object(
      'type', 'perdure.errors.RunCancelled',
      'message', 'run ''' || id || ''' was cancelled before it could go on' || COALESCE(': ' || NULLIF(asked.reason, ''), '')
    )::text AS error
  FROM target
  CROSS JOIN asked
), entry AS (
  INSERT INTO perdure_messages (run_id, seq, kind, name, payload, failed, message_key, sent_at)
  SELECT id, inbox_seq + 1, 'cancel', '', to_json(asked.reason)::text, 0, key, now
  FROM target, verdict, asked
  WHERE outcome = 'accepted'
), changed AS (
  UPDATE perdure_runs r
  SET inbox_seq = target.inbox_seq + 1,
    status = CASE WHEN at_once THEN 'cancelled' WHEN target.status = 'waiting' THEN 'pending' ELSE target.status END,
    reason = CASE WHEN target.status = 'waiting' OR at_once THEN NULL ELSE target.reason END,
    wake_at = CASE WHEN target.status = 'waiting' THEN now ELSE r.wake_at END,
    marked = CASE WHEN target.status = 'running' THEN 1 ELSE 0 END,
    error = CASE WHEN at_once THEN verdict.error ELSE r.error END,
    finished_at = CASE WHEN at_once THEN now ELSE 0 END,
    claims = CASE WHEN at_once THEN 0 ELSE r.claims END,
    close_by = CASE WHEN at_once THEN 0 ELSE r.close_by END
  FROM target, verdict, asked
  WHERE outcome = 'accepted' AND r.id = target.id
  RETURNING r.status
), noted AS (
  INSERT INTO perdure_events (run_id, at, kind, actor, data)
  SELECT id, now, line.kind, 'sql', line.data
  FROM target, verdict, asked, LATERAL (VALUES
    (1, 'cancel_requested', json_build_object('reason', asked.reason)::text),
    (2, 'cancelled', json_build_object('error', error::json ->> 'type', 'message', left(error::json ->> 'message', 500))::text)
  ) AS line (place, kind, data)
  WHERE outcome = 'accepted' AND (at_once OR place = 1)
  ORDER BY place
), parent AS MATERIALIZED (
  SELECT p.id, p.status, p.reason, p.inbox_seq, p.started_at, target.parent_location AS location,
    'child:' || target.id || ':' || target.generation AS key
  FROM target, verdict, perdure_runs p
  WHERE outcome = 'accepted' AND at_once AND p.id = target.parent_id AND target.parent_location IS NOT NULL
    AND p.status NOT IN ('completed', 'failed', 'cancelled')
  FOR NO KEY UPDATE OF p
), word AS (
  INSERT INTO perdure_messages (run_id, seq, kind, name, payload, failed, message_key, sent_at)
  SELECT parent.id, parent.inbox_seq + 1, 'child', location, error, 1, parent.key, now
  FROM parent, verdict, asked
), told AS (
  UPDATE perdure_runs r
  SET inbox_seq = parent.inbox_seq + 1,
    status = CASE WHEN parent.wakes THEN 'pending' ELSE parent.status END,
    reason = CASE WHEN parent.wakes THEN NULL ELSE parent.reason END,
    wake_at = CASE WHEN parent.wakes THEN now ELSE r.wake_at END,
    marked = CASE WHEN parent.status = 'running' THEN 1 ELSE 0 END
  FROM asked, (
    SELECT *, status = 'waiting' AND started_at <> 0 AND reason IS DISTINCT FROM 'paused' AS wakes FROM parent
  ) AS parent
  WHERE r.id = parent.id
)
SELECT COALESCE((SELECT outcome FROM verdict), 'unknown') AS outcome,
  COALESCE((SELECT status FROM changed), (SELECT status FROM target)) AS status;
