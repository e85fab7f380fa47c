CREATE TABLE IF NOT EXISTS perdure_registry (
  type TEXT COLLATE "C" NOT NULL PRIMARY KEY,
  kind TEXT COLLATE "C" NOT NULL DEFAULT 'activity' CHECK (kind IN ('workflow', 'activity')),
  runtime TEXT COLLATE "C" NOT NULL DEFAULT 'sql',
  description TEXT COLLATE "C" NOT NULL DEFAULT '',
  registered_at BIGINT NOT NULL DEFAULT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
);

CREATE OR REPLACE VIEW perdure_runs_view AS
SELECT
  id,
  type,
  status || COALESCE(': ' || reason, '') AS state,
  queue,
  priority,
  attempt,
  NULLIF(max_attempts, 0) AS max_attempts,
  worker,
  to_timestamp(created_at / 1000000.0) AS created,
  to_timestamp(NULLIF(started_at, 0) / 1000000.0) AS started,
  to_timestamp(NULLIF(finished_at, 0) / 1000000.0) AS finished,
  CASE WHEN status = 'pending' THEN to_timestamp(wake_at / 1000000.0)
    WHEN status = 'waiting' THEN to_timestamp(COALESCE(
      (SELECT h.at FROM perdure_history h WHERE h.run_id = perdure_runs.id ORDER BY h.seq DESC LIMIT 1),
      NULLIF(started_at, 0), created_at) / 1000000.0)
  END AS waiting_since,
  CASE WHEN status = 'waiting' AND wake_at < 253402300799999999 THEN to_timestamp(wake_at / 1000000.0) END AS wakes,
  CASE WHEN deadline < 253402300799999999 THEN to_timestamp(deadline / 1000000.0) END AS deadline,
  CASE WHEN started_at = 0 THEN NULL
    WHEN finished_at > 0 THEN (finished_at - started_at) / 1000000.0
    ELSE extract(epoch FROM clock_timestamp()) - started_at / 1000000.0 END AS seconds,
  error::json ->> 'type' AS error_type,
  error::json ->> 'message' AS error,
  parent_id AS parent,
  idempotency_key,
  input,
  output
FROM perdure_runs
WHERE deleted_at = 0;

CREATE OR REPLACE VIEW perdure_events_view AS
SELECT id, run_id, to_timestamp(at / 1000000.0) AS at, kind, actor, data
FROM perdure_events;

CREATE OR REPLACE VIEW perdure_types_view AS
SELECT
  r.type,
  r.kind,
  r.runtime,
  CASE WHEN p.name IS NULL THEN 1 ELSE 0 END AS enabled,
  p.reason AS disabled_because,
  r.description,
  to_timestamp(r.registered_at / 1000000.0) AS registered
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
  to_timestamp(w.started_at / 1000000.0) AS started,
  to_timestamp(w.heartbeat_at / 1000000.0) AS heard_of,
  w.queues,
  w.types
FROM perdure_workers w;
