CREATE TABLE IF NOT EXISTS perdure_observers (
  target TEXT NOT NULL,
  run_id TEXT NOT NULL,
  message_key TEXT NOT NULL,
  location TEXT NOT NULL,
  kind TEXT NOT NULL,
  name TEXT NOT NULL,
  position INTEGER NOT NULL,
  seen TEXT NOT NULL,
  PRIMARY KEY (target, run_id, message_key)
) STRICT, WITHOUT ROWID;

CREATE INDEX IF NOT EXISTS perdure_observers_by_run ON perdure_observers (run_id);
