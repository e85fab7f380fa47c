CREATE TABLE IF NOT EXISTS perdure_outputs (
  run_id TEXT NOT NULL,
  kind TEXT NOT NULL,
  name TEXT NOT NULL,
  position INTEGER NOT NULL DEFAULT 0,
  payload TEXT NOT NULL,
  failed INTEGER NOT NULL DEFAULT 0,
  at INTEGER NOT NULL,
  output_key TEXT DEFAULT NULL,
  PRIMARY KEY (run_id, kind, name, position)
) STRICT, WITHOUT ROWID;

CREATE UNIQUE INDEX IF NOT EXISTS perdure_outputs_by_key ON perdure_outputs (run_id, output_key) WHERE output_key IS NOT NULL;

CREATE TABLE IF NOT EXISTS perdure_topics (
  topic TEXT NOT NULL,
  run_id TEXT NOT NULL,
  PRIMARY KEY (topic, run_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX IF NOT EXISTS perdure_topics_by_run ON perdure_topics (run_id);
