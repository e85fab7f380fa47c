CREATE TABLE IF NOT EXISTS perdure_outputs (
  run_id VARCHAR(255) NOT NULL,
  kind VARCHAR(8) NOT NULL,
  name VARCHAR(500) NOT NULL,
  position BIGINT NOT NULL DEFAULT 0,
  payload LONGTEXT NOT NULL,
  failed SMALLINT NOT NULL DEFAULT 0,
  at BIGINT NOT NULL,
  output_key VARCHAR(500) DEFAULT NULL,
  PRIMARY KEY (run_id, kind, name, position),
  UNIQUE KEY perdure_outputs_by_key (run_id, output_key)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4
  /*M! COLLATE utf8mb4_nopad_bin */ /*!50700 COLLATE utf8mb4_0900_bin */;

CREATE TABLE IF NOT EXISTS perdure_topics (
  topic VARCHAR(500) NOT NULL,
  run_id VARCHAR(255) NOT NULL,
  PRIMARY KEY (topic, run_id),
  KEY perdure_topics_by_run (run_id)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4
  /*M! COLLATE utf8mb4_nopad_bin */ /*!50700 COLLATE utf8mb4_0900_bin */;
