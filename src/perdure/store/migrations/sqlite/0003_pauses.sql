CREATE TABLE IF NOT EXISTS perdure_pauses (
  kind TEXT NOT NULL CHECK (kind IN ('type', 'queue', 'limited-type', 'limited-queue')),
  name TEXT NOT NULL,
  reason TEXT NOT NULL DEFAULT '',
  actor TEXT NOT NULL DEFAULT '',
  paused_at INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (kind, name)
) STRICT, WITHOUT ROWID;
