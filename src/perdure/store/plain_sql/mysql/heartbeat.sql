-- heartbeat, version 1: renew the lease of a run, and read whether it is to stop.
-- @id, @token, @nonce: as `claim` returned them
-- @lease: microseconds from now after which other workers get the run
-- @details: JSON for the next attempt, if this one is lost; NULL: none
-- Returns one row: lease_until, cancelled (1: stop, then `fail`); or none: another worker has the run, so drop it.
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
START TRANSACTION;
UPDATE perdure_runs
SET lease_until = LEAST(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + @lease, deadline)
WHERE id = @id AND token = @token AND nonce = @nonce AND status = 'running';
INSERT INTO perdure_outputs (run_id, kind, name, payload, at)
SELECT id, 'beat', '', IF(JSON_VALID(@details), @details, NULL), TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
FROM perdure_runs
WHERE id = @id AND token = @token AND nonce = @nonce AND status = 'running' AND @details IS NOT NULL
ON DUPLICATE KEY UPDATE payload = VALUES(payload), at = VALUES(at);
COMMIT;
SELECT lease_until, EXISTS (
    SELECT 1 FROM perdure_messages m WHERE m.run_id = r.id AND m.seq > r.inbox_read AND m.kind = 'cancel'
  ) AS cancelled
FROM perdure_runs r
WHERE id = @id AND token = @token AND nonce = @nonce AND status = 'running';
