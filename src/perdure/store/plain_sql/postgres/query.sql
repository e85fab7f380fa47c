-- query, version 1: read the status of a run, and its result or error.
-- $1 id: text
-- Returns no row, or one: status (pending, running, waiting, completed, failed, cancelled, blocked), reason (of waiting
-- or being blocked), attempt, output (JSON), error_type, error_message, error (JSON), created_at, started_at,
-- finished_at.
SELECT status, reason, attempt, output, error::json ->> 'type' AS error_type, error::json ->> 'message' AS error_message, error,
  created_at, started_at, finished_at
FROM perdure_runs
WHERE id = $1::text AND deleted_at = 0;
