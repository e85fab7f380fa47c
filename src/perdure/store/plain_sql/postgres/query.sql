-- query, version 1: where a run stands, its result, or its error.
-- $1 id: text
-- Gives no row, or one: status (pending, running, waiting, completed, failed, cancelled, blocked), reason (what it waits for, or
-- why it is blocked), attempt, output (JSON), error_type, error_message, error (JSON), created_at, started_at, finished_at.
SELECT status, reason, attempt, output, error::json ->> 'type' AS error_type, error::json ->> 'message' AS error_message, error,
  created_at, started_at, finished_at
FROM perdure_runs
WHERE id = $1::text AND deleted_at = 0;
