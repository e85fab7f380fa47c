CREATE TABLE IF NOT EXISTS perdure_attributes (
  run_id TEXT NOT NULL,
  name TEXT NOT NULL,
  kind TEXT NOT NULL,
  text_value TEXT DEFAULT NULL,
  number_value REAL DEFAULT NULL,
  time_value INTEGER DEFAULT NULL,
  created_at INTEGER NOT NULL,
  PRIMARY KEY (run_id, name),
  CHECK (kind IN ('text', 'integer', 'float', 'bool', 'time'))
) STRICT, WITHOUT ROWID;

CREATE INDEX IF NOT EXISTS perdure_attributes_by_text ON perdure_attributes (name, text_value, created_at, run_id)
  WHERE text_value IS NOT NULL;

CREATE INDEX IF NOT EXISTS perdure_attributes_by_number ON perdure_attributes (name, number_value, created_at, run_id, kind)
  WHERE number_value IS NOT NULL;

CREATE INDEX IF NOT EXISTS perdure_attributes_by_time ON perdure_attributes (name, time_value, created_at, run_id)
  WHERE time_value IS NOT NULL;

CREATE INDEX IF NOT EXISTS perdure_attributes_by_age ON perdure_attributes (name, created_at, run_id);

ALTER TABLE perdure_schedules ADD COLUMN attributes TEXT NOT NULL DEFAULT '{}';
