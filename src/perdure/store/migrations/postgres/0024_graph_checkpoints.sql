CREATE TABLE IF NOT EXISTS perdure_graph_checkpoints (
  thread TEXT COLLATE "C" NOT NULL,
  space TEXT COLLATE "C" NOT NULL DEFAULT '',
  checkpoint TEXT COLLATE "C" NOT NULL,
  entry TEXT COLLATE "C" NOT NULL DEFAULT '',
  parent TEXT COLLATE "C" NOT NULL DEFAULT '',
  run TEXT COLLATE "C" NOT NULL DEFAULT '',
  metadata TEXT COLLATE "C" NOT NULL DEFAULT '',
  body TEXT COLLATE "C" NOT NULL DEFAULT '',
  at BIGINT NOT NULL DEFAULT 0,
  PRIMARY KEY (thread, space, checkpoint, entry)
);

CREATE INDEX IF NOT EXISTS perdure_graph_checkpoints_by_run ON perdure_graph_checkpoints (run);
