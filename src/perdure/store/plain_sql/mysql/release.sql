-- release, version 1: give a run back unchanged, for any worker to claim at once. No attempt is used up.
-- @id, @token, @nonce: as `claim` returned them
-- Returns one row: outcome (applied; lost: it was given back already, or another worker has it).
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
START TRANSACTION;
SET @now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
UPDATE perdure_runs
SET status = 'pending', reason = NULL, token = token + 1, wake_at = @now, worker = NULL, home = NULL, marked = 0, claims = 0,
  lease_until = 0
WHERE id = @id AND token = @token AND nonce = @nonce AND status = 'running';
SET @held = ROW_COUNT() > 0;
INSERT INTO perdure_events (run_id, at, kind, actor, data)
SELECT id, @now, 'released', 'sql', JSON_OBJECT('token', token)
FROM perdure_runs
WHERE id = @id AND @held;
COMMIT;
SELECT IF(@held, 'applied', 'lost') AS outcome;
