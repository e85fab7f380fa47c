CREATE TABLE IF NOT EXISTS perdure_locks (
  name VARCHAR(200) NOT NULL,
  owner VARCHAR(255) NOT NULL DEFAULT '',
  nonce VARCHAR(64) NOT NULL DEFAULT '',
  token BIGINT NOT NULL DEFAULT 0,
  acquired_at BIGINT NOT NULL DEFAULT 0,
  expires_at BIGINT NOT NULL DEFAULT 0,
  PRIMARY KEY (name),
  KEY perdure_locks_by_end (expires_at)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4
  /*M! COLLATE utf8mb4_nopad_bin */ /*!50700 COLLATE utf8mb4_0900_bin */;

CREATE TABLE IF NOT EXISTS perdure_singletons (
  name VARCHAR(500) NOT NULL,
  run_id VARCHAR(255) NOT NULL DEFAULT '',
  write_id VARCHAR(255) NOT NULL DEFAULT '',
  since BIGINT NOT NULL DEFAULT 0,
  PRIMARY KEY (name)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4
  /*M! COLLATE utf8mb4_nopad_bin */ /*!50700 COLLATE utf8mb4_0900_bin */;

CREATE TABLE IF NOT EXISTS perdure_successors (
  run_id VARCHAR(255) NOT NULL,
  name VARCHAR(500) NOT NULL,
  place BIGINT NOT NULL,
  wake_at BIGINT NOT NULL DEFAULT 0,
  policy VARCHAR(16) NOT NULL DEFAULT 'queue',
  PRIMARY KEY (run_id),
  KEY perdure_successors_in_line (name, place),
  CHECK (policy IN ('reject', 'attach', 'replace', 'queue'))
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4
  /*M! COLLATE utf8mb4_nopad_bin */ /*!50700 COLLATE utf8mb4_0900_bin */;

CREATE TABLE IF NOT EXISTS perdure_watermarks (
  kind VARCHAR(16) NOT NULL,
  name VARCHAR(200) NOT NULL,
  high BIGINT NOT NULL,
  low BIGINT NOT NULL,
  when_full VARCHAR(16) NOT NULL DEFAULT 'refuse',
  actor VARCHAR(255) NOT NULL DEFAULT '',
  changed_at BIGINT NOT NULL DEFAULT 0,
  PRIMARY KEY (kind, name),
  CHECK (kind IN ('type', 'queue') AND when_full IN ('refuse', 'wait'))
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4
  /*M! COLLATE utf8mb4_nopad_bin */ /*!50700 COLLATE utf8mb4_0900_bin */;
