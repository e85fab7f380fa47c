-- insert, version 1: start a run, once for each idempotency key.
-- @type: such as 'notify.email.v1'
-- @input: a JSON object (arguments by name) or array (by position); NULL: none
-- @idempotency_key: NULL: none, so that every call starts another run
-- @queue: NULL: 'default'
-- @priority: lower first; NULL: 100
-- @run_at: microseconds since 1970 in UTC; NULL: now
-- @max_attempts: NULL: as declared in code
-- Returns one row: id, created (0: it existed under that key).
SET @now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
SET @later = COALESCE(@run_at, 0) > @now;
SET @new = REPLACE(UUID(), '-', '');
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
START TRANSACTION;
INSERT INTO perdure_runs
  (id, type, input, idempotency_key, queue, priority, max_attempts, status, reason, wake_at, created_at)
VALUES (@new, @type, CASE WHEN @input IS NULL THEN '{}' WHEN JSON_VALID(@input) THEN @input END, @idempotency_key,
  COALESCE(@queue, 'default'), COALESCE(@priority, 100), COALESCE(@max_attempts, 0), IF(@later, 'waiting', 'pending'),
  IF(@later, 'timer', NULL), IF(@later, @run_at, @now), @now)
ON DUPLICATE KEY UPDATE created_at = created_at;
SELECT COALESCE((SELECT id FROM perdure_runs WHERE idempotency_key = @idempotency_key), @new) INTO @there;
INSERT INTO perdure_events (run_id, at, kind, actor, data)
SELECT @new, @now, 'created', 'sql', JSON_OBJECT('type', @type)
FROM (SELECT 1 AS one) AS once
WHERE @there = @new;
COMMIT;
SELECT @there AS id, @there = @new AS created;
