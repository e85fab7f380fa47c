-- fail, version 1: fail an attempt. Another attempt follows after a delay, unless all attempts are used up, none is
-- wanted, or the retry policy in the run's options gives up on errors of this type; then the run has failed. A run that
-- was asked to stop is cancelled.
-- $1 id: text, $2 token: bigint, $3 nonce: text: as `claim` returned them
-- $4 error_type: text, such as 'TimeoutError'
-- $5 error_message: text
-- $6 delay: bigint, microseconds until the next attempt; NULL: no further attempt
-- Returns one row: outcome (applied; lost: another worker has the run, and nothing was written), status (of the run,
-- afterwards).
-- A repetition after a lost answer returns applied again.
WITH clock AS MATERIALIZED (
  SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now
), mine AS MATERIALIZED (
  SELECT id, type, status, token, attempt, max_attempts, started_at, deadline, generation, inbox_read, parent_id, parent_location,
    CASE WHEN options LIKE '%"give_up_on"%' THEN
      jsonb_typeof(options::jsonb #> '{retry,give_up_on}') = 'array' AND (
        options::jsonb #> '{retry,give_up_on}' @> to_jsonb(COALESCE($4::text, 'Exception'))
        OR options::jsonb #> '{retry,give_up_on}' @> to_jsonb(regexp_replace(COALESCE($4::text, 'Exception'), '^.*[.]', ''))
      )
    ELSE FALSE END AS gives_up
  FROM perdure_runs
  WHERE id = $1::text AND token = $2::bigint AND nonce = $3::text
  FOR NO KEY UPDATE
), held AS MATERIALIZED (
  SELECT mine.*, now, now + $6::bigint AS again_at,
    CASE
      WHEN EXISTS (
        SELECT 1 FROM perdure_messages m WHERE m.run_id = mine.id AND m.seq > mine.inbox_read AND m.kind = 'cancel'
      ) THEN 'cancelled'
      WHEN $6::bigint IS NULL OR gives_up OR (max_attempts > 0 AND attempt >= max_attempts) OR now + $6::bigint >= deadline
        THEN 'failed'
      ELSE 'waiting'
    END AS becomes,
    json_build_object('type', COALESCE($4::text, 'Exception'), 'message', COALESCE($5::text, ''))::text AS error,
    CASE WHEN ($6::bigint IS NULL OR gives_up) AND (max_attempts = 0 OR attempt < max_attempts)
      THEN 'fatal' ELSE 'exhausted' END AS given_up,
    (SELECT MAX(h.seq) FROM perdure_history h WHERE h.run_id = mine.id) AS last,
    GREATEST(now, (SELECT h.at FROM perdure_history h WHERE h.run_id = mine.id ORDER BY h.seq DESC LIMIT 1)) AS recorded_at
  FROM mine, clock
  WHERE status = 'running'
), ended AS MATERIALIZED (
  SELECT held.*,
    CASE
      WHEN becomes = 'cancelled' THEN json_build_object(
        'type', 'perdure.errors.RunCancelled', 'message', 'run ''' || id || ''' was cancelled: ' || COALESCE($5::text, '')
      )::text
      WHEN becomes = 'failed' THEN json_build_object(
        'type', COALESCE($4::text, 'Exception'), 'message', COALESCE($5::text, ''), 'given_up', given_up
      )::text
      ELSE error
    END AS outcome_error
  FROM held
), recorded AS (
  INSERT INTO perdure_history
    (run_id, seq, token, kind, location, payload, failed, at, started_at, attempts, retry_at, run_attempt)
  SELECT id, COALESCE(last, -1) + 1, token, 'attempt', type, error, 1, recorded_at, started_at, attempt, again_at, attempt
  FROM ended
  WHERE becomes = 'waiting'
), done AS (
  UPDATE perdure_runs r
  SET status = CASE WHEN becomes = 'waiting' AND again_at <= now THEN 'pending' ELSE becomes END,
    reason = CASE WHEN becomes = 'waiting' AND again_at > now THEN 'retry' END,
    wake_at = CASE WHEN becomes = 'waiting' THEN again_at ELSE r.wake_at END,
    attempt = CASE WHEN becomes = 'waiting' THEN r.attempt + 1 ELSE r.attempt END,
    started_at = CASE WHEN becomes = 'waiting' THEN 0 ELSE r.started_at END,
    output = NULL, error = outcome_error, finished_at = CASE WHEN becomes = 'waiting' THEN 0 ELSE now END, worker = NULL,
    marked = 0, claims = 0, lease_until = 0
  FROM ended
  WHERE r.id = ended.id
  RETURNING r.status
), noted AS (
  INSERT INTO perdure_events (run_id, at, kind, actor, data)
  SELECT id, now, CASE WHEN becomes = 'waiting' THEN 'retried' ELSE becomes END, 'sql',
    CASE WHEN becomes = 'waiting'
      THEN json_build_object('attempt', attempt + 1, 'at', again_at, 'error', said ->> 'type', 'message', left(said ->> 'message', 500))
      ELSE json_build_object('error', said ->> 'type', 'message', left(said ->> 'message', 500))
    END::text
  FROM (SELECT *, outcome_error::json AS said FROM ended) AS ended
), parent AS MATERIALIZED (
  SELECT p.id, p.status, p.reason, p.inbox_seq, p.started_at, ended.parent_location AS location, ended.outcome_error AS payload, now,
    'child:' || ended.id || ':' || ended.generation AS key
  FROM ended, perdure_runs p
  WHERE becomes <> 'waiting' AND p.id = ended.parent_id AND ended.parent_location IS NOT NULL
    AND p.status NOT IN ('completed', 'failed', 'cancelled')
  FOR NO KEY UPDATE OF p
), word AS (
  INSERT INTO perdure_messages (run_id, seq, kind, name, payload, failed, message_key, sent_at)
  SELECT id, inbox_seq + 1, 'child', location, payload, 1, key, now
  FROM parent
), told AS (
  UPDATE perdure_runs r
  SET inbox_seq = parent.inbox_seq + 1,
    status = CASE WHEN parent.wakes THEN 'pending' ELSE parent.status END,
    reason = CASE WHEN parent.wakes THEN NULL ELSE parent.reason END,
    wake_at = CASE WHEN parent.wakes THEN now ELSE r.wake_at END,
    marked = CASE WHEN parent.status = 'running' THEN 1 ELSE 0 END
  FROM (
    SELECT *, status = 'waiting' AND started_at <> 0 AND reason IS DISTINCT FROM 'paused' AS wakes FROM parent
  ) AS parent
  WHERE r.id = parent.id
)
SELECT CASE WHEN EXISTS (SELECT 1 FROM mine) THEN 'applied' ELSE 'lost' END AS outcome,
  COALESCE((SELECT status FROM done), (SELECT status FROM mine)) AS status;
