CREATE TABLE IF NOT EXISTS perdure_gates (
  name VARCHAR(255) NOT NULL PRIMARY KEY,
  concurrency BIGINT NOT NULL DEFAULT 0,
  pace BIGINT NOT NULL DEFAULT 0,
  burst BIGINT NOT NULL DEFAULT 1,
  override LONGTEXT NOT NULL DEFAULT (''),
  arrival BIGINT NOT NULL DEFAULT 0,
  turn BIGINT NOT NULL DEFAULT 0,
  due_at BIGINT NOT NULL DEFAULT 253402300799999999,
  waits_for VARCHAR(8) NOT NULL DEFAULT '',
  breaker LONGTEXT NOT NULL DEFAULT (''),
  changed_at BIGINT NOT NULL DEFAULT 0,
  changed_by VARCHAR(255) NOT NULL DEFAULT '',
  KEY perdure_gates_due (due_at, name),
  CHECK (waits_for IN ('', 'room', 'rate', 'open'))
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4
  /*M! COLLATE utf8mb4_nopad_bin */ /*!50700 COLLATE utf8mb4_0900_bin */;

CREATE TABLE IF NOT EXISTS perdure_lines (
  run_id VARCHAR(255) NOT NULL,
  location VARCHAR(100) NOT NULL DEFAULT '',
  gate VARCHAR(255) NOT NULL,
  queue VARCHAR(200) NOT NULL,
  type VARCHAR(200) NOT NULL,
  priority BIGINT NOT NULL,
  turn BIGINT NOT NULL,
  gating LONGTEXT NOT NULL,
  since BIGINT NOT NULL,
  PRIMARY KEY (run_id, location),
  KEY perdure_lines_by_priority (gate, type, priority, turn, run_id),
  KEY perdure_lines_by_turn (gate, type, turn, run_id),
  KEY perdure_lines_by_type (type)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4
  /*M! COLLATE utf8mb4_nopad_bin */ /*!50700 COLLATE utf8mb4_0900_bin */;

CREATE TABLE IF NOT EXISTS perdure_permits (
  gate VARCHAR(255) NOT NULL,
  run_id VARCHAR(255) NOT NULL,
  location VARCHAR(100) NOT NULL DEFAULT '',
  token BIGINT NOT NULL,
  hold VARCHAR(8) NOT NULL DEFAULT 'lease',
  granted_at BIGINT NOT NULL,
  PRIMARY KEY (gate, run_id, location),
  KEY perdure_permits_by_run (run_id, location),
  CHECK (hold IN ('lease', 'run', 'turn'))
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4
  /*M! COLLATE utf8mb4_nopad_bin */ /*!50700 COLLATE utf8mb4_0900_bin */;

CREATE TABLE IF NOT EXISTS perdure_shares (
  gate VARCHAR(255) NOT NULL,
  fair_key VARCHAR(255) NOT NULL,
  turn BIGINT NOT NULL,
  PRIMARY KEY (gate, fair_key)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4
  /*M! COLLATE utf8mb4_nopad_bin */ /*!50700 COLLATE utf8mb4_0900_bin */;
