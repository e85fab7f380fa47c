CREATE TABLE IF NOT EXISTS perdure_gates (
  name TEXT NOT NULL PRIMARY KEY,
  concurrency INTEGER NOT NULL DEFAULT 0,
  pace INTEGER NOT NULL DEFAULT 0,
  burst INTEGER NOT NULL DEFAULT 1,
  override TEXT NOT NULL DEFAULT '',
  arrival INTEGER NOT NULL DEFAULT 0,
  turn INTEGER NOT NULL DEFAULT 0,
  due_at INTEGER NOT NULL DEFAULT 253402300799999999,
  waits_for TEXT NOT NULL DEFAULT '' CHECK (waits_for IN ('', 'room', 'rate', 'open')),
  breaker TEXT NOT NULL DEFAULT '',
  changed_at INTEGER NOT NULL DEFAULT 0,
  changed_by TEXT NOT NULL DEFAULT ''
) STRICT, WITHOUT ROWID;

CREATE INDEX IF NOT EXISTS perdure_gates_due ON perdure_gates (due_at, name);

CREATE TABLE IF NOT EXISTS perdure_lines (
  run_id TEXT NOT NULL,
  location TEXT NOT NULL DEFAULT '',
  gate TEXT NOT NULL,
  queue TEXT NOT NULL,
  type TEXT NOT NULL,
  priority INTEGER NOT NULL,
  turn INTEGER NOT NULL,
  gating TEXT NOT NULL,
  since INTEGER NOT NULL,
  PRIMARY KEY (run_id, location)
) STRICT, WITHOUT ROWID;

CREATE INDEX IF NOT EXISTS perdure_lines_by_priority ON perdure_lines (gate, type, priority, turn, run_id);

CREATE INDEX IF NOT EXISTS perdure_lines_by_turn ON perdure_lines (gate, type, turn, run_id);

CREATE INDEX IF NOT EXISTS perdure_lines_by_type ON perdure_lines (type);

CREATE TABLE IF NOT EXISTS perdure_permits (
  gate TEXT NOT NULL,
  run_id TEXT NOT NULL,
  location TEXT NOT NULL DEFAULT '',
  token INTEGER NOT NULL,
  hold TEXT NOT NULL DEFAULT 'lease' CHECK (hold IN ('lease', 'run', 'turn')),
  granted_at INTEGER NOT NULL,
  PRIMARY KEY (gate, run_id, location)
) STRICT, WITHOUT ROWID;

CREATE INDEX IF NOT EXISTS perdure_permits_by_run ON perdure_permits (run_id, location);

CREATE TABLE IF NOT EXISTS perdure_shares (
  gate TEXT NOT NULL,
  fair_key TEXT NOT NULL,
  turn INTEGER NOT NULL,
  PRIMARY KEY (gate, fair_key)
) STRICT, WITHOUT ROWID;
