CREATE TABLE IF NOT EXISTS perdure_registry (
  type TEXT NOT NULL PRIMARY KEY,
  kind TEXT NOT NULL DEFAULT 'activity' CHECK (kind IN ('workflow', 'activity')),
  runtime TEXT NOT NULL DEFAULT 'sql',
  description TEXT NOT NULL DEFAULT '',
  registered_at INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) * 1000)
) STRICT, WITHOUT ROWID;

CREATE VIEW IF NOT EXISTS perdure_runs_view AS
SELECT
  id,
  type,
  status || COALESCE(': ' || reason, '') AS state,
  queue,
  priority,
  attempt,
  NULLIF(max_attempts, 0) AS max_attempts,
  worker,
  strftime('%Y-%m-%d %H:%M:%f', created_at / 1000000.0, 'unixepoch') AS created,
  strftime('%Y-%m-%d %H:%M:%f', NULLIF(started_at, 0) / 1000000.0, 'unixepoch') AS started,
  strftime('%Y-%m-%d %H:%M:%f', NULLIF(finished_at, 0) / 1000000.0, 'unixepoch') AS finished,
  CASE WHEN status = 'pending' THEN strftime('%Y-%m-%d %H:%M:%f', wake_at / 1000000.0, 'unixepoch')
    WHEN status = 'waiting' THEN strftime('%Y-%m-%d %H:%M:%f', COALESCE(
      (SELECT h.at FROM perdure_history h WHERE h.run_id = perdure_runs.id ORDER BY h.seq DESC LIMIT 1),
      NULLIF(started_at, 0), created_at) / 1000000.0, 'unixepoch')
  END AS waiting_since,
  CASE WHEN status = 'waiting' AND wake_at < 253402300799999999
    THEN strftime('%Y-%m-%d %H:%M:%f', wake_at / 1000000.0, 'unixepoch') END AS wakes,
  CASE WHEN deadline < 253402300799999999
    THEN strftime('%Y-%m-%d %H:%M:%f', deadline / 1000000.0, 'unixepoch') END AS deadline,
  CASE WHEN started_at = 0 THEN NULL
    WHEN finished_at > 0 THEN (finished_at - started_at) / 1000000.0
    ELSE (julianday('now') - 2440587.5) * 86400 - started_at / 1000000.0 END AS seconds,
  json_extract(error, '$.type') AS error_type,
  json_extract(error, '$.message') AS error,
  parent_id AS parent,
  idempotency_key,
  input,
  output
FROM perdure_runs
WHERE deleted_at = 0;

CREATE VIEW IF NOT EXISTS perdure_events_view AS
SELECT id, run_id, strftime('%Y-%m-%d %H:%M:%f', at / 1000000.0, 'unixepoch') AS at, kind, actor, data
FROM perdure_events;

CREATE VIEW IF NOT EXISTS perdure_types_view AS
SELECT
  r.type,
  r.kind,
  r.runtime,
  CASE WHEN p.name IS NULL THEN 1 ELSE 0 END AS enabled,
  p.reason AS disabled_because,
  r.description,
  strftime('%Y-%m-%d %H:%M:%f', r.registered_at / 1000000.0, 'unixepoch') AS registered
FROM perdure_registry r
LEFT JOIN perdure_pauses p ON p.kind = 'type' AND p.name = r.type;

CREATE VIEW IF NOT EXISTS perdure_workers_view AS
SELECT
  w.id,
  w.host,
  w.pid,
  w.status,
  w.slots,
  (SELECT COUNT(*) FROM perdure_runs r WHERE r.status = 'running' AND r.worker = w.id) AS runs,
  strftime('%Y-%m-%d %H:%M:%f', w.started_at / 1000000.0, 'unixepoch') AS started,
  strftime('%Y-%m-%d %H:%M:%f', w.heartbeat_at / 1000000.0, 'unixepoch') AS heard_of,
  w.queues,
  w.types
FROM perdure_workers w;
