CREATE TABLE IF NOT EXISTS perdure_registry (
  type VARCHAR(200) NOT NULL PRIMARY KEY,
  kind VARCHAR(16) NOT NULL DEFAULT 'activity',
  runtime VARCHAR(100) NOT NULL DEFAULT 'sql',
  description TEXT NOT NULL DEFAULT (''),
  registered_at BIGINT NOT NULL DEFAULT (TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))),
  CHECK (kind IN ('workflow', 'activity'))
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4
  /*M! COLLATE utf8mb4_nopad_bin */ /*!50700 COLLATE utf8mb4_0900_bin */;

CREATE OR REPLACE VIEW perdure_runs_view AS
SELECT
  id,
  type,
  CONCAT_WS(': ', status, reason) AS state,
  queue,
  priority,
  attempt,
  NULLIF(max_attempts, 0) AS max_attempts,
  worker,
  TIMESTAMPADD(MICROSECOND, created_at, TIMESTAMP'1970-01-01 00:00:00') AS created,
  TIMESTAMPADD(MICROSECOND, NULLIF(started_at, 0), TIMESTAMP'1970-01-01 00:00:00') AS started,
  TIMESTAMPADD(MICROSECOND, NULLIF(finished_at, 0), TIMESTAMP'1970-01-01 00:00:00') AS finished,
  CASE WHEN status = 'pending' THEN TIMESTAMPADD(MICROSECOND, wake_at, TIMESTAMP'1970-01-01 00:00:00')
    WHEN status = 'waiting' THEN TIMESTAMPADD(MICROSECOND, COALESCE(
      (SELECT h.at FROM perdure_history h WHERE h.run_id = perdure_runs.id ORDER BY h.seq DESC LIMIT 1),
      NULLIF(started_at, 0), created_at), TIMESTAMP'1970-01-01 00:00:00')
  END AS waiting_since,
  CASE WHEN status = 'waiting' AND wake_at < 253402300799999999
    THEN TIMESTAMPADD(MICROSECOND, wake_at, TIMESTAMP'1970-01-01 00:00:00') END AS wakes,
  CASE WHEN deadline < 253402300799999999
    THEN TIMESTAMPADD(MICROSECOND, deadline, TIMESTAMP'1970-01-01 00:00:00') END AS deadline,
  CASE WHEN started_at = 0 THEN NULL
    WHEN finished_at > 0 THEN (finished_at - started_at) / 1000000.0
    ELSE (TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) - started_at) / 1000000.0 END AS seconds,
  JSON_UNQUOTE(JSON_EXTRACT(error, '$.type')) AS error_type,
  JSON_UNQUOTE(JSON_EXTRACT(error, '$.message')) AS error,
  parent_id AS parent,
  idempotency_key,
  input,
  output
FROM perdure_runs
WHERE deleted_at = 0;

CREATE OR REPLACE VIEW perdure_events_view AS
SELECT id, run_id, TIMESTAMPADD(MICROSECOND, at, TIMESTAMP'1970-01-01 00:00:00') AS at, kind, actor, data
FROM perdure_events;

CREATE OR REPLACE VIEW perdure_types_view AS
SELECT
  r.type,
  r.kind,
  r.runtime,
  CASE WHEN p.name IS NULL THEN 1 ELSE 0 END AS enabled,
  p.reason AS disabled_because,
  r.description,
  TIMESTAMPADD(MICROSECOND, r.registered_at, TIMESTAMP'1970-01-01 00:00:00') AS registered
FROM perdure_registry r
LEFT JOIN perdure_pauses p ON p.kind = 'type' AND p.name = r.type;

CREATE OR REPLACE VIEW perdure_workers_view AS
SELECT
  w.id,
  w.host,
  w.pid,
  w.status,
  w.slots,
  (SELECT COUNT(*) FROM perdure_runs r WHERE r.status = 'running' AND r.worker = w.id) AS runs,
  TIMESTAMPADD(MICROSECOND, w.started_at, TIMESTAMP'1970-01-01 00:00:00') AS started,
  TIMESTAMPADD(MICROSECOND, w.heartbeat_at, TIMESTAMP'1970-01-01 00:00:00') AS heard_of,
  w.queues,
  w.types
FROM perdure_workers w;
