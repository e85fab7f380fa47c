-- complete, version 1: complete a run with its result. A run that was asked to stop is cancelled, with the result as its
-- partial result.
-- $1 id: text, $2 token: bigint, $3 nonce: text: as `claim` returned them
-- $4 output: text, the result as JSON; NULL: null
-- Returns one row: outcome (applied; lost: another worker has the run, and nothing was written).
-- A repetition after a lost answer returns applied again.
WITH clock AS MATERIALIZED (
  SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now, COALESCE($4::json::text, 'null') AS output
), mine AS MATERIALIZED (
  SELECT id, status, generation, parent_id, parent_location, inbox_read
  FROM perdure_runs
  WHERE id = $1::text AND token = $2::bigint AND nonce = $3::text
  FOR NO KEY UPDATE
), held AS MATERIALIZED (
  SELECT mine.*, stop.error
  FROM mine
  LEFT JOIN LATERAL (
    SELECT json_build_object('type', 'perdure.errors.RunCancelled', 'message', 'run ''' || mine.id || ''' was cancelled'
      || COALESCE(': ' || NULLIF(m.payload::json #>> '{}', ''), ''), 'partial', $4::json::text)::text AS error
    FROM perdure_messages m
    WHERE m.run_id = mine.id AND m.seq > mine.inbox_read AND m.kind = 'cancel'
    ORDER BY m.seq
    LIMIT 1
  ) stop ON TRUE
  WHERE status = 'running'
), done AS (
  UPDATE perdure_runs r
  SET status = CASE WHEN held.error IS NULL THEN 'completed' ELSE 'cancelled' END, reason = NULL,
    output = CASE WHEN held.error IS NULL THEN clock.output END, error = held.error, finished_at = now, worker = NULL, marked = 0,
    claims = 0, lease_until = 0
  FROM held, clock
  WHERE r.id = held.id
), noted AS (
  INSERT INTO perdure_events (run_id, at, kind, actor, data)
  SELECT id, now, CASE WHEN error IS NULL THEN 'completed' ELSE 'cancelled' END, 'sql', CASE WHEN error IS NULL THEN '{}' ELSE
    json_build_object('error', error::json ->> 'type', 'message', left(error::json ->> 'message', 500))::text END
  FROM held, clock
), parent AS MATERIALIZED (
  SELECT p.id, p.status, p.reason, p.inbox_seq, p.started_at, held.parent_location AS location, held.error,
    'child:' || held.id || ':' || held.generation AS key
  FROM held, perdure_runs p
  WHERE p.id = held.parent_id AND held.parent_location IS NOT NULL AND p.status NOT IN ('completed', 'failed', 'cancelled')
  FOR NO KEY UPDATE OF p
), word AS (
  INSERT INTO perdure_messages (run_id, seq, kind, name, payload, failed, message_key, sent_at)
  SELECT id, inbox_seq + 1, 'child', location, COALESCE(error, output), CASE WHEN error IS NULL THEN 0 ELSE 1 END, key, now
  FROM parent, clock
), told AS (
  UPDATE perdure_runs r
  SET inbox_seq = parent.inbox_seq + 1,
    status = CASE WHEN parent.wakes THEN 'pending' ELSE parent.status END,
    reason = CASE WHEN parent.wakes THEN NULL ELSE parent.reason END,
    wake_at = CASE WHEN parent.wakes THEN now ELSE r.wake_at END,
    marked = CASE WHEN parent.status = 'running' THEN 1 ELSE 0 END
  FROM clock, (
    SELECT *, status = 'waiting' AND started_at <> 0 AND reason IS DISTINCT FROM 'paused' AS wakes FROM parent
  ) AS parent
  WHERE r.id = parent.id
)
SELECT CASE WHEN EXISTS (SELECT 1 FROM mine) THEN 'applied' ELSE 'lost' END AS outcome;
