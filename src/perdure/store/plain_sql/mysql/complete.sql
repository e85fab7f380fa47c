-- complete, version 1: complete a run with its result. A run that was asked to stop is cancelled, with the result as its
-- partial result.
-- @id, @token, @nonce: as `claim` returned them
-- @output: the result as JSON; NULL: null
-- Returns one row: outcome (applied; lost: another worker has the run, and nothing was written).
-- A repetition after a lost answer returns applied again.
SET @status = NULL, @location = NULL, @generation = NULL, @why = NULL;
SELECT (SELECT parent_id FROM perdure_runs WHERE id = @id) INTO @parent;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
START TRANSACTION;
SELECT COUNT(*) INTO @locked
FROM perdure_runs FORCE INDEX (PRIMARY)
WHERE id IN (@id, COALESCE(@parent, @id))
FOR UPDATE;
SET @now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
SELECT status, parent_location, generation
INTO @status, @location, @generation
FROM perdure_runs
WHERE id = @id AND token = @token AND nonce = @nonce;
SET @held = COALESCE(@status = 'running', FALSE);
SET @result = CASE WHEN @output IS NULL THEN 'null' WHEN JSON_VALID(@output) THEN @output END;
SELECT m.payload
INTO @why
FROM perdure_runs r
JOIN perdure_messages m ON m.run_id = r.id AND m.seq > r.inbox_read AND m.kind = 'cancel'
WHERE r.id = @id AND @held
ORDER BY m.seq
LIMIT 1;
SET @error = IF(@why IS NULL, NULL, JSON_OBJECT(
  'type', 'perdure.errors.RunCancelled', 'message', CONCAT('run ''', @id, ''' was cancelled', COALESCE(CONCAT(': ', NULLIF(
    IF(JSON_VALID(@why), JSON_UNQUOTE(@why), @why), '')), '')), 'partial', IF(@output IS NULL, NULL, @result)
));
INSERT INTO perdure_messages (run_id, seq, kind, name, payload, failed, message_key, sent_at)
SELECT id, inbox_seq + 1, 'child', @location, COALESCE(@error, @result), @error IS NOT NULL, CONCAT('child:', @id, ':', @generation), @now
FROM perdure_runs
WHERE id = @parent AND @held AND @location IS NOT NULL AND status NOT IN ('completed', 'failed', 'cancelled');
SET @told = ROW_COUNT() > 0;
SELECT (SELECT status = 'waiting' AND started_at <> 0 AND reason <> 'paused' FROM perdure_runs WHERE id = @parent) INTO @wakes;
UPDATE perdure_runs
SET inbox_seq = inbox_seq + 1, marked = status = 'running', wake_at = IF(@wakes, @now, wake_at), reason = IF(@wakes, NULL, reason),
  status = IF(@wakes, 'pending', status)
WHERE id = @parent AND @told;
INSERT INTO perdure_events (run_id, at, kind, actor, data)
SELECT id, @now, IF(@error IS NULL, 'completed', 'cancelled'), 'sql', IF(@error IS NULL, '{}', JSON_OBJECT(
    'error', JSON_UNQUOTE(JSON_EXTRACT(@error, '$.type')), 'message', LEFT(JSON_UNQUOTE(JSON_EXTRACT(@error, '$.message')), 500)
  ))
FROM perdure_runs
WHERE id = @id AND @held;
UPDATE perdure_runs
SET status = IF(@error IS NULL, 'completed', 'cancelled'), reason = NULL, output = IF(@error IS NULL, @result, NULL),
  error = @error, finished_at = @now, worker = NULL, marked = 0, claims = 0,
  lease_until = 0
WHERE id = @id AND @held;
COMMIT;
SELECT IF(@status IS NULL, 'lost', 'applied') AS outcome;
