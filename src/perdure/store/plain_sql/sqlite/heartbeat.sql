-- heartbeat, version 1: renew the lease of a run, and read whether it is to stop.
-- :id, :token, :nonce: as `claim` returned them
-- :lease: microseconds from now after which other workers get the run
-- :details: JSON for the next attempt, if this one is lost; NULL: none
-- Returns one row: lease_until, cancelled (1: stop, then `fail`); or none: another worker has the run, so drop it.
BEGIN IMMEDIATE;
UPDATE perdure_runs
SET lease_until = MIN(CAST(ROUND((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000 + :lease, deadline)
WHERE id = :id AND token = :token AND nonce = :nonce AND status = 'running';
INSERT INTO perdure_outputs (run_id, kind, name, payload, at)
SELECT id, 'beat', '', json(:details), CAST(ROUND((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000
FROM perdure_runs
WHERE id = :id AND token = :token AND nonce = :nonce AND status = 'running' AND :details IS NOT NULL
ON CONFLICT (run_id, kind, name, position) DO UPDATE SET payload = excluded.payload, at = excluded.at;
SELECT lease_until, EXISTS (
    SELECT 1 FROM perdure_messages m WHERE m.run_id = r.id AND m.seq > r.inbox_read AND m.kind = 'cancel'
  ) AS cancelled
FROM perdure_runs r
WHERE id = :id AND token = :token AND nonce = :nonce AND status = 'running';
COMMIT;
