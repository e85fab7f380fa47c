CREATE TABLE IF NOT EXISTS perdure_graph_checkpoints (
  thread TEXT NOT NULL,
  space TEXT NOT NULL DEFAULT '',
  checkpoint TEXT NOT NULL,
  entry TEXT NOT NULL DEFAULT '',
  parent TEXT NOT NULL DEFAULT '',
  run TEXT NOT NULL DEFAULT '',
  metadata TEXT NOT NULL DEFAULT '',
  body TEXT NOT NULL DEFAULT '',
  at INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (thread, space, checkpoint, entry)
) STRICT;

CREATE INDEX IF NOT EXISTS perdure_graph_checkpoints_by_run ON perdure_graph_checkpoints (run);
