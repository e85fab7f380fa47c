ALTER TABLE perdure_runs ADD COLUMN build TEXT NOT NULL DEFAULT '';

ALTER TABLE perdure_workers ADD COLUMN build TEXT NOT NULL DEFAULT '';

ALTER TABLE perdure_workers ADD COLUMN drain TEXT NOT NULL DEFAULT '';

CREATE TABLE IF NOT EXISTS perdure_documents (
  kind TEXT NOT NULL,
  name TEXT NOT NULL,
  build TEXT NOT NULL DEFAULT '',
  at INTEGER NOT NULL DEFAULT 0,
  actor TEXT NOT NULL DEFAULT '',
  body TEXT NOT NULL DEFAULT '{}',
  PRIMARY KEY (kind, name, build),
  CHECK (kind IN ('source', 'deploy'))
) STRICT, WITHOUT ROWID;
