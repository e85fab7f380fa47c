CREATE TABLE IF NOT EXISTS perdure_runs (
  id TEXT NOT NULL PRIMARY KEY DEFAULT (lower(hex(randomblob(16)))) CHECK (length(CAST(id AS BLOB)) BETWEEN 1 AND 255),
  status TEXT NOT NULL DEFAULT 'pending'
    -- Not IN, for which SQLite fills a table of its own at every write.
    CHECK (status = 'running' OR status = 'completed' OR status = 'pending' OR status = 'waiting'
      OR status = 'failed' OR status = 'cancelled' OR status = 'blocked'),
  token INTEGER NOT NULL DEFAULT 0,
  nonce TEXT NOT NULL DEFAULT '',
  inbox_seq INTEGER NOT NULL DEFAULT 0,
  inbox_read INTEGER NOT NULL DEFAULT 0,
  marked INTEGER NOT NULL DEFAULT 0,
  worker TEXT DEFAULT NULL,
  home TEXT DEFAULT NULL,
  lease_until INTEGER NOT NULL DEFAULT 0,
  claims INTEGER NOT NULL DEFAULT 0,
  progress INTEGER NOT NULL DEFAULT -1,
  type TEXT NOT NULL DEFAULT '',
  queue TEXT NOT NULL DEFAULT 'default',
  priority INTEGER NOT NULL DEFAULT 100,
  reason TEXT DEFAULT NULL,
  attempt INTEGER NOT NULL DEFAULT 1,
  max_attempts INTEGER NOT NULL DEFAULT 0,
  generation INTEGER NOT NULL DEFAULT 1,
  wake_at INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) * 1000),
  deadline INTEGER NOT NULL DEFAULT 253402300799999999,
  close_by INTEGER NOT NULL DEFAULT 0,
  created_at INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) * 1000),
  started_at INTEGER NOT NULL DEFAULT 0,
  finished_at INTEGER NOT NULL DEFAULT 0,
  deleted_at INTEGER NOT NULL DEFAULT 0,
  seed TEXT NOT NULL DEFAULT '',
  parent_id TEXT DEFAULT NULL,
  parent_location TEXT DEFAULT NULL,
  idempotency_key TEXT DEFAULT NULL,
  write_id TEXT NOT NULL DEFAULT '',
  options TEXT NOT NULL DEFAULT '{}',
  input TEXT NOT NULL DEFAULT '{}',
  output TEXT DEFAULT NULL,
  error TEXT DEFAULT NULL
) STRICT, WITHOUT ROWID;

CREATE UNIQUE INDEX IF NOT EXISTS perdure_runs_by_key ON perdure_runs (idempotency_key) WHERE idempotency_key IS NOT NULL;

CREATE INDEX IF NOT EXISTS perdure_runs_to_claim ON perdure_runs (queue, type, priority, wake_at, id, claims, home, status)
  WHERE status = 'pending';

CREATE INDEX IF NOT EXISTS perdure_runs_to_claim_by_age ON perdure_runs (queue, type, wake_at, id, claims, home, status)
  WHERE status = 'pending';

CREATE INDEX IF NOT EXISTS perdure_runs_to_wake ON perdure_runs (wake_at) WHERE status = 'waiting';

CREATE INDEX IF NOT EXISTS perdure_runs_to_expire ON perdure_runs (deadline)
  WHERE status IN ('pending', 'waiting') AND deadline < 253402300799999999;

CREATE INDEX IF NOT EXISTS perdure_runs_held ON perdure_runs (worker, nonce) WHERE status = 'running';

CREATE INDEX IF NOT EXISTS perdure_runs_marked ON perdure_runs (worker) WHERE status = 'running' AND marked = 1;

CREATE INDEX IF NOT EXISTS perdure_runs_blocked ON perdure_runs (type) WHERE status = 'blocked';

CREATE INDEX IF NOT EXISTS perdure_runs_by_parent ON perdure_runs (parent_id, created_at) WHERE parent_id IS NOT NULL;

CREATE INDEX IF NOT EXISTS perdure_runs_by_age ON perdure_runs (created_at, id);

CREATE INDEX IF NOT EXISTS perdure_runs_by_status ON perdure_runs (status, created_at, id) WHERE status <> 'completed';

CREATE TABLE IF NOT EXISTS perdure_history (
  run_id TEXT NOT NULL,
  seq INTEGER NOT NULL,
  token INTEGER NOT NULL,
  kind TEXT NOT NULL,
  location TEXT NOT NULL,
  payload TEXT DEFAULT NULL,
  failed INTEGER NOT NULL DEFAULT 0,
  at INTEGER NOT NULL,
  started_at INTEGER NOT NULL DEFAULT 0,
  digest TEXT NOT NULL DEFAULT '',
  attempts INTEGER NOT NULL DEFAULT 0,
  retry_at INTEGER NOT NULL DEFAULT 0,
  inbox_seq INTEGER NOT NULL DEFAULT 0,
  run_attempt INTEGER NOT NULL DEFAULT 1,
  PRIMARY KEY (run_id, seq)
) STRICT, WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS perdure_messages (
  run_id TEXT NOT NULL,
  seq INTEGER NOT NULL,
  kind TEXT NOT NULL,
  name TEXT NOT NULL DEFAULT '',
  payload TEXT DEFAULT NULL,
  failed INTEGER NOT NULL DEFAULT 0,
  message_key TEXT NOT NULL,
  sent_at INTEGER NOT NULL,
  consumed INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (run_id, seq)
) STRICT, WITHOUT ROWID;

CREATE UNIQUE INDEX IF NOT EXISTS perdure_messages_by_key ON perdure_messages (run_id, message_key);

CREATE TABLE IF NOT EXISTS perdure_events (
  id INTEGER PRIMARY KEY,
  run_id TEXT NOT NULL,
  at INTEGER NOT NULL,
  kind TEXT NOT NULL,
  actor TEXT NOT NULL DEFAULT '',
  data TEXT NOT NULL DEFAULT '{}'
) STRICT;

CREATE INDEX IF NOT EXISTS perdure_events_by_run ON perdure_events (run_id, id);

CREATE TABLE IF NOT EXISTS perdure_workers (
  id TEXT NOT NULL PRIMARY KEY,
  host TEXT NOT NULL DEFAULT '',
  pid INTEGER NOT NULL DEFAULT 0,
  queues TEXT NOT NULL DEFAULT '[]',
  types TEXT NOT NULL DEFAULT '[]',
  slots INTEGER NOT NULL DEFAULT 0,
  lease INTEGER NOT NULL DEFAULT 0,
  started_at INTEGER NOT NULL DEFAULT 0,
  heartbeat_at INTEGER NOT NULL DEFAULT 0,
  status TEXT NOT NULL DEFAULT 'alive' CHECK (status IN ('alive', 'stopped', 'dead'))
) STRICT, WITHOUT ROWID;
