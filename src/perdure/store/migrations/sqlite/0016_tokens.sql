CREATE TABLE IF NOT EXISTS perdure_tokens (
  name TEXT NOT NULL,
  parent TEXT NOT NULL DEFAULT '',
  digest TEXT NOT NULL,
  role TEXT NOT NULL,
  created_at INTEGER NOT NULL DEFAULT 0,
  created_by TEXT NOT NULL DEFAULT '',
  expires_at INTEGER NOT NULL DEFAULT 0,
  revoked_at INTEGER NOT NULL DEFAULT 0,
  used_at INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (name),
  CHECK (role IN ('viewer', 'operator', 'admin'))
) STRICT, WITHOUT ROWID;

CREATE INDEX IF NOT EXISTS perdure_tokens_by_parent ON perdure_tokens (parent, name);

CREATE UNIQUE INDEX IF NOT EXISTS perdure_tokens_by_digest ON perdure_tokens (digest);
