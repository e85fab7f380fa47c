CREATE TABLE IF NOT EXISTS perdure_attributes (
  run_id TEXT COLLATE "C" NOT NULL,
  name TEXT COLLATE "C" NOT NULL,
  kind TEXT COLLATE "C" NOT NULL,
  text_value TEXT COLLATE "C" DEFAULT NULL,
  number_value DOUBLE PRECISION DEFAULT NULL,
  time_value BIGINT DEFAULT NULL,
  created_at BIGINT NOT NULL,
  PRIMARY KEY (run_id, name),
  CHECK (kind IN ('text', 'integer', 'float', 'bool', 'time'))
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.05);

CREATE INDEX IF NOT EXISTS perdure_attributes_by_text ON perdure_attributes (name, text_value, created_at, run_id)
  WHERE text_value IS NOT NULL;

CREATE INDEX IF NOT EXISTS perdure_attributes_by_number ON perdure_attributes (name, number_value, created_at, run_id, kind)
  WHERE number_value IS NOT NULL;

CREATE INDEX IF NOT EXISTS perdure_attributes_by_time ON perdure_attributes (name, time_value, created_at, run_id)
  WHERE time_value IS NOT NULL;

CREATE INDEX IF NOT EXISTS perdure_attributes_by_age ON perdure_attributes (name, created_at, run_id);

ALTER TABLE perdure_schedules ADD COLUMN IF NOT EXISTS attributes TEXT COLLATE "C" NOT NULL DEFAULT '{}';
