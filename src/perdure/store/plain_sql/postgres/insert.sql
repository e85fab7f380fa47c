-- insert, version 1: start a run, once for each idempotency key.
-- $1 type: text, such as 'notify.email.v1'
-- $2 input: text, a JSON object (arguments by name) or array (by position); NULL: none
-- $3 idempotency_key: text; NULL: none, so that every call starts another run
-- $4 queue: text; NULL: 'default'
-- $5 priority: bigint, lower first; NULL: 100
-- $6 run_at: bigint, microseconds since 1970 in UTC; NULL: now
-- $7 max_attempts: bigint; NULL: as declared in code
-- Returns one row: id, created (false: it existed under that key).
WITH clock AS MATERIALIZED (
  SELECT replace(gen_random_uuid()::text, '-', '') AS id, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now
), fresh AS MATERIALIZED (
  SELECT id, now, COALESCE($6::bigint, 0) > now AS later FROM clock
), new AS (
  INSERT INTO perdure_runs AS r
    (id, type, input, idempotency_key, queue, priority, max_attempts, status, reason, wake_at, created_at)
  SELECT id, $1::text, COALESCE($2::json::text, '{}'), $3::text, COALESCE($4::text, 'default'), COALESCE($5::bigint, 100),
    COALESCE($7::bigint, 0), CASE WHEN later THEN 'waiting' ELSE 'pending' END, CASE WHEN later THEN 'timer' END,
    CASE WHEN later THEN $6::bigint ELSE now END, now
  FROM fresh
  ON CONFLICT (idempotency_key) WHERE idempotency_key IS NOT NULL DO UPDATE SET idempotency_key = r.idempotency_key
  RETURNING id
), noted AS (
  INSERT INTO perdure_events (run_id, at, kind, actor, data)
  SELECT fresh.id, now, 'created', 'sql', json_build_object('type', $1::text)::text
  FROM fresh JOIN new ON new.id = fresh.id
)
SELECT new.id, new.id = fresh.id AS created
FROM new
CROSS JOIN fresh;
