-- heartbeat, version 1: renew the lease of a run, and read whether it is to stop.
-- $1 id: text, $2 token: bigint, $3 nonce: text: as `claim` returned them
-- $4 lease: bigint, microseconds from now after which other workers get the run
-- $5 details: text, JSON for the next attempt, if this one is lost; NULL: none
-- Returns one row: lease_until, cancelled (true: stop, then `fail`); or none: another worker has the run, so drop it.
WITH held AS (
  UPDATE perdure_runs r
  SET lease_until = LEAST((extract(epoch FROM clock_timestamp()) * 1000000)::bigint + $4::bigint, r.deadline)
  WHERE r.id = $1::text AND r.token = $2::bigint AND r.nonce = $3::text AND r.status = 'running'
  RETURNING r.id, r.lease_until, r.inbox_seq > r.inbox_read AND EXISTS (
    SELECT 1 FROM perdure_messages m WHERE m.run_id = r.id AND m.seq > r.inbox_read AND m.kind = 'cancel'
  ) AS cancelled
), said AS (
  INSERT INTO perdure_outputs (run_id, kind, name, payload, at)
  SELECT id, 'beat', '', $5::json::text, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
  FROM held
  WHERE $5::text IS NOT NULL
  ON CONFLICT (run_id, kind, name, position) DO UPDATE SET payload = EXCLUDED.payload, at = EXCLUDED.at
)
SELECT lease_until, cancelled
FROM held;
