ALTER TABLE perdure_runs ADD COLUMN IF NOT EXISTS watched SMALLINT NOT NULL DEFAULT 0;

CREATE TABLE IF NOT EXISTS perdure_waiters (
  target TEXT COLLATE "C" NOT NULL,
  run_id TEXT COLLATE "C" NOT NULL,
  message_key TEXT COLLATE "C" NOT NULL,
  location TEXT COLLATE "C" NOT NULL,
  PRIMARY KEY (target, run_id, message_key)
);

CREATE INDEX IF NOT EXISTS perdure_waiters_by_run ON perdure_waiters (run_id);
