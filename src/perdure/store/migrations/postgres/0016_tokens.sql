CREATE TABLE IF NOT EXISTS perdure_tokens (
  name TEXT COLLATE "C" NOT NULL,
  parent TEXT COLLATE "C" NOT NULL DEFAULT '',
  digest TEXT COLLATE "C" NOT NULL,
  role TEXT COLLATE "C" NOT NULL,
  created_at BIGINT NOT NULL DEFAULT 0,
  created_by TEXT COLLATE "C" NOT NULL DEFAULT '',
  expires_at BIGINT NOT NULL DEFAULT 0,
  revoked_at BIGINT NOT NULL DEFAULT 0,
  used_at BIGINT NOT NULL DEFAULT 0,
  PRIMARY KEY (name),
  CHECK (role IN ('viewer', 'operator', 'admin'))
);

CREATE INDEX IF NOT EXISTS perdure_tokens_by_parent ON perdure_tokens (parent, name);

CREATE UNIQUE INDEX IF NOT EXISTS perdure_tokens_by_digest ON perdure_tokens (digest);
