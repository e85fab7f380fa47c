-- cancel, version 1: ask a run to stop. A run that has not begun is cancelled at once; others find the
-- request in their inbox.
-- @id
-- @reason: free text; NULL: none
-- @key: unique for this request, so that it can be repeated after a lost answer; NULL: a random one
-- Returns one row: outcome (accepted; duplicate: accepted before under that key; finished; unknown; blocked: it was
-- set aside, and `perdure cancel` has to stop its children, too), status (of the run, afterwards).
SET @request = COALESCE(@key, CAST(UUID() AS CHAR));
SET @status = NULL, @at_once = NULL, @location = NULL, @generation = NULL;
SELECT (SELECT parent_id FROM perdure_runs WHERE id = @id) INTO @parent;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
START TRANSACTION;
SELECT COUNT(*) INTO @locked
FROM perdure_runs FORCE INDEX (PRIMARY)
WHERE id IN (@id, COALESCE(@parent, @id))
FOR UPDATE;
SET @now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
SELECT status, status IN ('pending', 'waiting') AND started_at = 0 AND attempt = 1, parent_location, generation
INTO @status, @at_once, @location, @generation
FROM perdure_runs
WHERE id = @id;
SELECT CASE
  WHEN @status IS NULL THEN 'unknown'
  WHEN EXISTS (SELECT 1 FROM perdure_messages WHERE run_id = @id AND message_key = @request) THEN 'duplicate'
  WHEN @status IN ('completed', 'failed', 'cancelled') THEN 'finished'
  WHEN @status = 'blocked' THEN 'blocked'
  ELSE 'accepted'
END INTO @outcome;
SET @error = JSON_OBJECT(
  'type', 'perdure.errors.RunCancelled',
  'message', CONCAT('run ''', @id, ''' was cancelled before it could go on', COALESCE(CONCAT(': ', NULLIF(@reason, '')), ''))
);
INSERT INTO perdure_messages (run_id, seq, kind, name, payload, failed, message_key, sent_at)
SELECT id, inbox_seq + 1, 'cancel', '', JSON_QUOTE(COALESCE(@reason, '')), 0, @request, @now
FROM perdure_runs
WHERE id = @id AND @outcome = 'accepted';
INSERT INTO perdure_messages (run_id, seq, kind, name, payload, failed, message_key, sent_at)
SELECT id, inbox_seq + 1, 'child', @location, @error, 1, CONCAT('child:', @id, ':', @generation), @now
FROM perdure_runs
WHERE id = @parent AND @outcome = 'accepted' AND @at_once AND @location IS NOT NULL AND status NOT IN ('completed', 'failed', 'cancelled');
SET @told = ROW_COUNT() > 0;
SELECT (SELECT status = 'waiting' AND started_at <> 0 AND reason <> 'paused' FROM perdure_runs WHERE id = @parent) INTO @wakes;
UPDATE perdure_runs
SET inbox_seq = inbox_seq + 1, marked = status = 'running', wake_at = IF(@wakes, @now, wake_at), reason = IF(@wakes, NULL, reason),
  status = IF(@wakes, 'pending', status)
WHERE id = @parent AND @told;
UPDATE perdure_runs
SET inbox_seq = inbox_seq + 1, reason = IF(@at_once OR @status = 'waiting', NULL, reason),
  wake_at = IF(@status = 'waiting', @now, wake_at), marked = @status = 'running', error = IF(@at_once, @error, error),
  finished_at = IF(@at_once, @now, 0), claims = IF(@at_once, 0, claims), close_by = IF(@at_once, 0, close_by),
  status = CASE WHEN @at_once THEN 'cancelled' WHEN @status = 'waiting' THEN 'pending' ELSE status END
WHERE id = @id AND @outcome = 'accepted';
INSERT INTO perdure_events (run_id, at, kind, actor, data)
SELECT r.id, r.created_at, 'created', 'sql', JSON_OBJECT('type', r.type)
FROM perdure_runs r
WHERE r.id = @id AND @outcome = 'accepted' AND @at_once AND r.write_id = ''
  AND NOT EXISTS (SELECT 1 FROM perdure_events e WHERE e.run_id = r.id AND e.kind = 'created');
INSERT INTO perdure_events (run_id, at, kind, actor, data)
SELECT id, @now, 'cancel_requested', 'sql', JSON_OBJECT('reason', COALESCE(@reason, ''))
FROM perdure_runs
WHERE id = @id AND @outcome = 'accepted';
INSERT INTO perdure_events (run_id, at, kind, actor, data)
SELECT id, @now, 'cancelled', 'sql', JSON_OBJECT(
    'error', JSON_UNQUOTE(JSON_EXTRACT(@error, '$.type')), 'message', LEFT(JSON_UNQUOTE(JSON_EXTRACT(@error, '$.message')), 500)
  )
FROM perdure_runs
WHERE id = @id AND @outcome = 'accepted' AND @at_once;
COMMIT;
SELECT @outcome AS outcome, (SELECT status FROM perdure_runs WHERE id = @id) AS status;
