CREATE TABLE IF NOT EXISTS perdure_pauses (
  kind TEXT COLLATE "C" NOT NULL CHECK (kind IN ('type', 'queue', 'limited-type', 'limited-queue')),
  name TEXT COLLATE "C" NOT NULL,
  reason TEXT COLLATE "C" NOT NULL DEFAULT '',
  actor TEXT COLLATE "C" NOT NULL DEFAULT '',
  paused_at BIGINT NOT NULL DEFAULT 0,
  PRIMARY KEY (kind, name)
);
