-- release, version 1: give a run back unchanged, for any worker to claim at once. No attempt is used up.
-- $1 id: text, $2 token: bigint, $3 nonce: text: as `claim` returned them
-- Returns one row: outcome (applied; lost: it was given back already, or another worker has it).
WITH clock AS MATERIALIZED (
  SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now
), done AS (
  UPDATE perdure_runs r
  SET status = 'pending', reason = NULL, token = r.token + 1, wake_at = now, worker = NULL, home = NULL, marked = 0, claims = 0,
    lease_until = 0
  FROM clock
  WHERE r.id = $1::text AND r.token = $2::bigint AND r.nonce = $3::text AND r.status = 'running'
  RETURNING r.id, r.token, now
), noted AS (
  INSERT INTO perdure_events (run_id, at, kind, actor, data)
  SELECT id, now, 'released', 'sql', json_build_object('token', token)::text FROM done
)
SELECT CASE WHEN EXISTS (SELECT 1 FROM done) THEN 'applied' ELSE 'lost' END AS outcome;
