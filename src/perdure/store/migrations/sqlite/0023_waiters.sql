ALTER TABLE perdure_runs ADD COLUMN watched INTEGER NOT NULL DEFAULT 0;

CREATE TABLE IF NOT EXISTS perdure_waiters (
  target TEXT NOT NULL,
  run_id TEXT NOT NULL,
  message_key TEXT NOT NULL,
  location TEXT NOT NULL,
  PRIMARY KEY (target, run_id, message_key)
) STRICT, WITHOUT ROWID;

CREATE INDEX IF NOT EXISTS perdure_waiters_by_run ON perdure_waiters (run_id);
