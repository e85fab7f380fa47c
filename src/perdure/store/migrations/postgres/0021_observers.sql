CREATE TABLE IF NOT EXISTS perdure_observers (
  target TEXT COLLATE "C" NOT NULL,
  run_id TEXT COLLATE "C" NOT NULL,
  message_key TEXT COLLATE "C" NOT NULL,
  location TEXT COLLATE "C" NOT NULL,
  kind TEXT COLLATE "C" NOT NULL,
  name TEXT COLLATE "C" NOT NULL,
  position BIGINT NOT NULL,
  seen TEXT COLLATE "C" NOT NULL,
  PRIMARY KEY (target, run_id, message_key)
);

CREATE INDEX IF NOT EXISTS perdure_observers_by_run ON perdure_observers (run_id);
