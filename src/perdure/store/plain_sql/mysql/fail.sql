-- fail, version 1: fail an attempt. Another attempt follows after a delay, unless all attempts are used up, none is
-- wanted, or the retry policy in the run's options gives up on errors of this type; then the run has failed. A run that
-- was asked to stop is cancelled.
-- @id, @token, @nonce: as `claim` returned them
-- @error_type: such as 'TimeoutError'
-- @error_message
-- @delay: microseconds until the next attempt; NULL: no further attempt
-- Returns one row: outcome (applied; lost: another worker has the run, and nothing was written), status (of the run,
-- afterwards).
-- A repetition after a lost answer returns applied again.
SET @status = NULL, @location = NULL, @generation = NULL, @gives_up = FALSE;
SELECT (SELECT parent_id FROM perdure_runs WHERE id = @id) INTO @parent;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
START TRANSACTION;
SELECT COUNT(*) INTO @locked
FROM perdure_runs FORCE INDEX (PRIMARY)
WHERE id IN (@id, COALESCE(@parent, @id))
FOR UPDATE;
SELECT COALESCE(IF(JSON_VALID(options), JSON_TYPE(JSON_EXTRACT(options, '$.retry.give_up_on')) = 'ARRAY' AND (
    JSON_CONTAINS(options, JSON_QUOTE(COALESCE(@error_type, 'Exception')), '$.retry.give_up_on')
    OR JSON_CONTAINS(options, JSON_QUOTE(SUBSTRING_INDEX(COALESCE(@error_type, 'Exception'), '.', -1)), '$.retry.give_up_on')
  ), FALSE), FALSE)
INTO @gives_up
FROM perdure_runs
WHERE id = @id;
SET @now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
SELECT status, parent_location, generation, @now + @delay,
  CASE
    WHEN EXISTS (SELECT 1 FROM perdure_messages m WHERE m.run_id = r.id AND m.seq > r.inbox_read AND m.kind = 'cancel')
      THEN 'cancelled'
    WHEN @delay IS NULL OR @gives_up OR (max_attempts > 0 AND attempt >= max_attempts) OR @now + @delay >= deadline
      THEN 'failed'
    ELSE 'waiting'
  END,
  IF((@delay IS NULL OR @gives_up) AND (max_attempts = 0 OR attempt < max_attempts), 'fatal', 'exhausted')
INTO @status, @location, @generation, @again_at, @becomes, @given_up
FROM perdure_runs r
WHERE id = @id AND token = @token AND nonce = @nonce;
SET @held = COALESCE(@status = 'running', FALSE);
SET @again = @held AND @becomes = 'waiting';
SET @attempt_error = JSON_OBJECT('type', COALESCE(@error_type, 'Exception'), 'message', COALESCE(@error_message, ''));
SET @error = CASE @becomes
  WHEN 'cancelled' THEN JSON_OBJECT(
    'type', 'perdure.errors.RunCancelled', 'message', CONCAT('run ''', @id, ''' was cancelled: ', COALESCE(@error_message, ''))
  )
  WHEN 'failed' THEN JSON_OBJECT(
    'type', COALESCE(@error_type, 'Exception'), 'message', COALESCE(@error_message, ''), 'given_up', @given_up
  )
  ELSE @attempt_error
END;
SET @said_type = JSON_UNQUOTE(JSON_EXTRACT(@error, '$.type')), @said = LEFT(JSON_UNQUOTE(JSON_EXTRACT(@error, '$.message')), 500);
SELECT COALESCE((SELECT MAX(seq) FROM perdure_history WHERE run_id = @id), -1) INTO @last;
SELECT COALESCE((SELECT at FROM perdure_history WHERE run_id = @id AND seq = @last), 0) INTO @last_at;
INSERT INTO perdure_history
  (run_id, seq, token, kind, location, payload, failed, at, started_at, attempts, retry_at, run_attempt)
SELECT id, @last + 1, token, 'attempt', type, @attempt_error, 1, GREATEST(@now, @last_at), started_at, attempt, @again_at, attempt
FROM perdure_runs
WHERE id = @id AND @again;
INSERT INTO perdure_messages (run_id, seq, kind, name, payload, failed, message_key, sent_at)
SELECT id, inbox_seq + 1, 'child', @location, @error, 1, CONCAT('child:', @id, ':', @generation), @now
FROM perdure_runs
WHERE id = @parent AND @held AND NOT @again AND @location IS NOT NULL AND status NOT IN ('completed', 'failed', 'cancelled');
SET @told = ROW_COUNT() > 0;
SELECT (SELECT status = 'waiting' AND started_at <> 0 AND reason <> 'paused' FROM perdure_runs WHERE id = @parent) INTO @wakes;
UPDATE perdure_runs
SET inbox_seq = inbox_seq + 1, marked = status = 'running', wake_at = IF(@wakes, @now, wake_at), reason = IF(@wakes, NULL, reason),
  status = IF(@wakes, 'pending', status)
WHERE id = @parent AND @told;
UPDATE perdure_runs
SET status = IF(@again AND @again_at <= @now, 'pending', @becomes), reason = IF(@again AND @again_at > @now, 'retry', NULL),
  wake_at = IF(@again, @again_at, wake_at), attempt = attempt + @again, started_at = IF(@again, 0, started_at), output = NULL,
  error = @error, finished_at = IF(@again, 0, @now), worker = NULL, marked = 0, claims = 0, lease_until = 0
WHERE id = @id AND @held;
INSERT INTO perdure_events (run_id, at, kind, actor, data)
SELECT id, @now, IF(@again, 'retried', @becomes), 'sql', IF(
    @again,
    JSON_OBJECT('attempt', attempt, 'at', @again_at, 'error', @said_type, 'message', @said),
    JSON_OBJECT('error', @said_type, 'message', @said)
  )
FROM perdure_runs
WHERE id = @id AND @held;
COMMIT;
SELECT IF(@status IS NULL, 'lost', 'applied') AS outcome, (SELECT status FROM perdure_runs WHERE id = @id) AS status;
