CREATE TABLE IF NOT EXISTS perdure_gates (
  name TEXT COLLATE "C" NOT NULL PRIMARY KEY,
  concurrency BIGINT NOT NULL DEFAULT 0,
  pace BIGINT NOT NULL DEFAULT 0,
  burst BIGINT NOT NULL DEFAULT 1,
  override TEXT COLLATE "C" NOT NULL DEFAULT '',
  arrival BIGINT NOT NULL DEFAULT 0,
  turn BIGINT NOT NULL DEFAULT 0,
  due_at BIGINT NOT NULL DEFAULT 253402300799999999,
  waits_for TEXT COLLATE "C" NOT NULL DEFAULT '' CHECK (waits_for IN ('', 'room', 'rate', 'open')),
  breaker TEXT COLLATE "C" NOT NULL DEFAULT '',
  changed_at BIGINT NOT NULL DEFAULT 0,
  changed_by TEXT COLLATE "C" NOT NULL DEFAULT ''
);

CREATE INDEX IF NOT EXISTS perdure_gates_due ON perdure_gates (due_at, name);

CREATE TABLE IF NOT EXISTS perdure_lines (
  run_id TEXT COLLATE "C" NOT NULL,
  location TEXT COLLATE "C" NOT NULL DEFAULT '',
  gate TEXT COLLATE "C" NOT NULL,
  queue TEXT COLLATE "C" NOT NULL,
  type TEXT COLLATE "C" NOT NULL,
  priority BIGINT NOT NULL,
  turn BIGINT NOT NULL,
  gating TEXT COLLATE "C" NOT NULL,
  since BIGINT NOT NULL,
  PRIMARY KEY (run_id, location)
);

CREATE INDEX IF NOT EXISTS perdure_lines_by_priority ON perdure_lines (gate, type, priority, turn, run_id);

CREATE INDEX IF NOT EXISTS perdure_lines_by_turn ON perdure_lines (gate, type, turn, run_id);

CREATE INDEX IF NOT EXISTS perdure_lines_by_type ON perdure_lines (type);

CREATE TABLE IF NOT EXISTS perdure_permits (
  gate TEXT COLLATE "C" NOT NULL,
  run_id TEXT COLLATE "C" NOT NULL,
  location TEXT COLLATE "C" NOT NULL DEFAULT '',
  token BIGINT NOT NULL,
  hold TEXT COLLATE "C" NOT NULL DEFAULT 'lease' CHECK (hold IN ('lease', 'run', 'turn')),
  granted_at BIGINT NOT NULL,
  PRIMARY KEY (gate, run_id, location)
);

CREATE INDEX IF NOT EXISTS perdure_permits_by_run ON perdure_permits (run_id, location);

CREATE TABLE IF NOT EXISTS perdure_shares (
  gate TEXT COLLATE "C" NOT NULL,
  fair_key TEXT COLLATE "C" NOT NULL,
  turn BIGINT NOT NULL,
  PRIMARY KEY (gate, fair_key)
);
