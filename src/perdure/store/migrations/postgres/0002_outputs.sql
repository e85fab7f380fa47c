CREATE TABLE IF NOT EXISTS perdure_outputs (
  run_id TEXT COLLATE "C" NOT NULL,
  kind TEXT COLLATE "C" NOT NULL,
  name TEXT COLLATE "C" NOT NULL,
  position BIGINT NOT NULL DEFAULT 0,
  payload TEXT COLLATE "C" NOT NULL,
  failed SMALLINT NOT NULL DEFAULT 0,
  at BIGINT NOT NULL,
  output_key TEXT COLLATE "C" DEFAULT NULL,
  PRIMARY KEY (run_id, kind, name, position)
) WITH (fillfactor = 80, autovacuum_analyze_scale_factor = 0.05);

CREATE UNIQUE INDEX IF NOT EXISTS perdure_outputs_by_key ON perdure_outputs (run_id, output_key) WHERE output_key IS NOT NULL;

CREATE TABLE IF NOT EXISTS perdure_topics (
  topic TEXT COLLATE "C" NOT NULL,
  run_id TEXT COLLATE "C" NOT NULL,
  PRIMARY KEY (topic, run_id)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.05);

CREATE INDEX IF NOT EXISTS perdure_topics_by_run ON perdure_topics (run_id);
