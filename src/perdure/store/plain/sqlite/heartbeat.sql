-- heartbeat, version 1: a worker says that it still works on a run, and learns whether it is to stop.
-- :id, :token, :nonce: as `claim` gave them
-- :lease: microseconds from now after which the run is given to others
-- Gives one row: lease_until, cancelled (1: stop, then `fail`); or none: somebody else has the run by now, so drop it.
UPDATE perdure_runs
SET lease_until = MIN(CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) * 1000 + :lease, deadline)
WHERE id = :id AND token = :token AND nonce = :nonce AND status = 'running'
RETURNING lease_until, EXISTS (
  SELECT 1 FROM perdure_messages m WHERE m.run_id = perdure_runs.id AND m.seq > inbox_read AND m.kind = 'cancel'
) AS cancelled;
