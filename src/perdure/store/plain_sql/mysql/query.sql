-- query, version 1: read the status of a run, and its result or error.
-- @id
-- Returns no row, or one: status (pending, running, waiting, completed, failed, cancelled, blocked), reason (of waiting
-- or being blocked), attempt, output (JSON), error_type, error_message, error (JSON), created_at, started_at,
-- finished_at.
SELECT status, reason, attempt, output, JSON_UNQUOTE(JSON_EXTRACT(error, '$.type')) AS error_type,
  JSON_UNQUOTE(JSON_EXTRACT(error, '$.message')) AS error_message, error, created_at, started_at, finished_at
FROM perdure_runs
WHERE id = @id AND deleted_at = 0;
