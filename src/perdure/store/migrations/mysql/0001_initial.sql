CREATE TABLE IF NOT EXISTS perdure_runs (
  id VARCHAR(255) NOT NULL DEFAULT (REPLACE(UUID(), '-', '')) PRIMARY KEY,
  status VARCHAR(16) NOT NULL DEFAULT 'pending',
  token BIGINT NOT NULL DEFAULT 0,
  nonce VARCHAR(100) NOT NULL DEFAULT '',
  inbox_seq BIGINT NOT NULL DEFAULT 0,
  inbox_read BIGINT NOT NULL DEFAULT 0,
  marked SMALLINT NOT NULL DEFAULT 0,
  worker VARCHAR(255) DEFAULT NULL,
  home VARCHAR(255) DEFAULT NULL,
  lease_until BIGINT NOT NULL DEFAULT 0,
  claims BIGINT NOT NULL DEFAULT 0,
  progress BIGINT NOT NULL DEFAULT -1,
  type VARCHAR(200) NOT NULL DEFAULT '',
  queue VARCHAR(200) NOT NULL DEFAULT 'default',
  priority BIGINT NOT NULL DEFAULT 100,
  reason VARCHAR(16) DEFAULT NULL,
  attempt BIGINT NOT NULL DEFAULT 1,
  max_attempts BIGINT NOT NULL DEFAULT 0,
  generation BIGINT NOT NULL DEFAULT 1,
  wake_at BIGINT NOT NULL DEFAULT (TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))),
  deadline BIGINT NOT NULL DEFAULT 253402300799999999,
  close_by BIGINT NOT NULL DEFAULT 0,
  created_at BIGINT NOT NULL DEFAULT (TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))),
  started_at BIGINT NOT NULL DEFAULT 0,
  finished_at BIGINT NOT NULL DEFAULT 0,
  deleted_at BIGINT NOT NULL DEFAULT 0,
  seed VARCHAR(100) NOT NULL DEFAULT '',
  parent_id VARCHAR(255) DEFAULT NULL,
  parent_location TEXT DEFAULT NULL,
  idempotency_key VARCHAR(255) DEFAULT NULL,
  write_id VARCHAR(500) NOT NULL DEFAULT '',
  options LONGTEXT NOT NULL DEFAULT ('{}'),
  input LONGTEXT NOT NULL DEFAULT ('{}'),
  output LONGTEXT DEFAULT NULL,
  error LONGTEXT DEFAULT NULL,
  UNIQUE KEY perdure_runs_by_key (idempotency_key),
  KEY perdure_runs_to_claim (status, queue, type, priority, wake_at, id),
  KEY perdure_runs_to_claim_by_age (status, queue, type, wake_at, id),
  KEY perdure_runs_to_wake (status, wake_at),
  KEY perdure_runs_to_expire (finished_at, deadline),
  KEY perdure_runs_held (status, worker, nonce, id, marked),
  KEY perdure_runs_by_parent (parent_id, created_at),
  KEY perdure_runs_by_age (created_at, id),
  KEY perdure_runs_by_status (status, created_at, id),
  CHECK (OCTET_LENGTH(id) BETWEEN 1 AND 255),
  CHECK (status IN ('pending', 'running', 'waiting', 'completed', 'failed', 'cancelled', 'blocked'))
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4
  /*M! COLLATE utf8mb4_nopad_bin */ /*!50700 COLLATE utf8mb4_0900_bin */;

CREATE TABLE IF NOT EXISTS perdure_history (
  run_id VARCHAR(255) NOT NULL,
  seq BIGINT NOT NULL,
  token BIGINT NOT NULL,
  kind VARCHAR(16) NOT NULL,
  location TEXT NOT NULL,
  payload LONGTEXT DEFAULT NULL,
  failed SMALLINT NOT NULL DEFAULT 0,
  at BIGINT NOT NULL,
  started_at BIGINT NOT NULL DEFAULT 0,
  digest VARCHAR(255) NOT NULL DEFAULT '',
  attempts BIGINT NOT NULL DEFAULT 0,
  retry_at BIGINT NOT NULL DEFAULT 0,
  inbox_seq BIGINT NOT NULL DEFAULT 0,
  run_attempt BIGINT NOT NULL DEFAULT 1,
  PRIMARY KEY (run_id, seq)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4
  /*M! COLLATE utf8mb4_nopad_bin */ /*!50700 COLLATE utf8mb4_0900_bin */;

CREATE TABLE IF NOT EXISTS perdure_messages (
  run_id VARCHAR(255) NOT NULL,
  seq BIGINT NOT NULL,
  kind VARCHAR(16) NOT NULL,
  name TEXT NOT NULL DEFAULT (''),
  payload LONGTEXT DEFAULT NULL,
  failed SMALLINT NOT NULL DEFAULT 0,
  message_key VARCHAR(500) NOT NULL,
  sent_at BIGINT NOT NULL,
  consumed SMALLINT NOT NULL DEFAULT 0,
  PRIMARY KEY (run_id, seq),
  UNIQUE KEY perdure_messages_by_key (run_id, message_key)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4
  /*M! COLLATE utf8mb4_nopad_bin */ /*!50700 COLLATE utf8mb4_0900_bin */;

CREATE TABLE IF NOT EXISTS perdure_events (
  id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
  run_id VARCHAR(255) NOT NULL,
  at BIGINT NOT NULL,
  kind VARCHAR(64) NOT NULL,
  actor TEXT NOT NULL DEFAULT (''),
  data LONGTEXT NOT NULL DEFAULT ('{}'),
  KEY perdure_events_by_run (run_id, id)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4
  /*M! COLLATE utf8mb4_nopad_bin */ /*!50700 COLLATE utf8mb4_0900_bin */;

CREATE TABLE IF NOT EXISTS perdure_workers (
  id VARCHAR(255) NOT NULL PRIMARY KEY,
  host VARCHAR(255) NOT NULL DEFAULT '',
  pid BIGINT NOT NULL DEFAULT 0,
  queues LONGTEXT NOT NULL DEFAULT ('[]'),
  types LONGTEXT NOT NULL DEFAULT ('[]'),
  slots BIGINT NOT NULL DEFAULT 0,
  lease BIGINT NOT NULL DEFAULT 0,
  started_at BIGINT NOT NULL DEFAULT 0,
  heartbeat_at BIGINT NOT NULL DEFAULT 0,
  status VARCHAR(16) NOT NULL DEFAULT 'alive',
  CHECK (status IN ('alive', 'stopped', 'dead'))
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4
  /*M! COLLATE utf8mb4_nopad_bin */ /*!50700 COLLATE utf8mb4_0900_bin */;
