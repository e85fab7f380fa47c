CREATE TABLE IF NOT EXISTS perdure_locks (
  name TEXT NOT NULL,
  owner TEXT NOT NULL DEFAULT '',
  nonce TEXT NOT NULL DEFAULT '',
  token INTEGER NOT NULL DEFAULT 0,
  acquired_at INTEGER NOT NULL DEFAULT 0,
  expires_at INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (name)
) STRICT, WITHOUT ROWID;

CREATE INDEX IF NOT EXISTS perdure_locks_by_end ON perdure_locks (expires_at);

CREATE TABLE IF NOT EXISTS perdure_singletons (
  name TEXT NOT NULL,
  run_id TEXT NOT NULL DEFAULT '',
  write_id TEXT NOT NULL DEFAULT '',
  since INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (name)
) STRICT, WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS perdure_successors (
  run_id TEXT NOT NULL,
  name TEXT NOT NULL,
  place INTEGER NOT NULL,
  wake_at INTEGER NOT NULL DEFAULT 0,
  policy TEXT NOT NULL DEFAULT 'queue',
  PRIMARY KEY (run_id),
  CHECK (policy IN ('reject', 'attach', 'replace', 'queue'))
) STRICT, WITHOUT ROWID;

CREATE INDEX IF NOT EXISTS perdure_successors_in_line ON perdure_successors (name, place);

CREATE TABLE IF NOT EXISTS perdure_watermarks (
  kind TEXT NOT NULL,
  name TEXT NOT NULL,
  high INTEGER NOT NULL,
  low INTEGER NOT NULL,
  when_full TEXT NOT NULL DEFAULT 'refuse',
  actor TEXT NOT NULL DEFAULT '',
  changed_at INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (kind, name),
  CHECK (kind IN ('type', 'queue') AND when_full IN ('refuse', 'wait'))
) STRICT, WITHOUT ROWID;
