CREATE TABLE IF NOT EXISTS perdure_locks (
  name TEXT COLLATE "C" NOT NULL,
  owner TEXT COLLATE "C" NOT NULL DEFAULT '',
  nonce TEXT COLLATE "C" NOT NULL DEFAULT '',
  token BIGINT NOT NULL DEFAULT 0,
  acquired_at BIGINT NOT NULL DEFAULT 0,
  expires_at BIGINT NOT NULL DEFAULT 0,
  PRIMARY KEY (name)
);

CREATE INDEX IF NOT EXISTS perdure_locks_by_end ON perdure_locks (expires_at);

CREATE TABLE IF NOT EXISTS perdure_singletons (
  name TEXT COLLATE "C" NOT NULL,
  run_id TEXT COLLATE "C" NOT NULL DEFAULT '',
  write_id TEXT COLLATE "C" NOT NULL DEFAULT '',
  since BIGINT NOT NULL DEFAULT 0,
  PRIMARY KEY (name)
);

CREATE TABLE IF NOT EXISTS perdure_successors (
  run_id TEXT COLLATE "C" NOT NULL,
  name TEXT COLLATE "C" NOT NULL,
  place BIGINT NOT NULL,
  wake_at BIGINT NOT NULL DEFAULT 0,
  policy TEXT COLLATE "C" NOT NULL DEFAULT 'queue',
  PRIMARY KEY (run_id),
  CHECK (policy IN ('reject', 'attach', 'replace', 'queue'))
);

CREATE INDEX IF NOT EXISTS perdure_successors_in_line ON perdure_successors (name, place);

CREATE TABLE IF NOT EXISTS perdure_watermarks (
  kind TEXT COLLATE "C" NOT NULL,
  name TEXT COLLATE "C" NOT NULL,
  high BIGINT NOT NULL,
  low BIGINT NOT NULL,
  when_full TEXT COLLATE "C" NOT NULL DEFAULT 'refuse',
  actor TEXT COLLATE "C" NOT NULL DEFAULT '',
  changed_at BIGINT NOT NULL DEFAULT 0,
  PRIMARY KEY (kind, name),
  CHECK (kind IN ('type', 'queue') AND when_full IN ('refuse', 'wait'))
);
