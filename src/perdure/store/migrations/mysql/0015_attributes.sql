CREATE TABLE IF NOT EXISTS perdure_attributes (
  run_id VARCHAR(255) NOT NULL,
  name VARCHAR(100) NOT NULL,
  kind VARCHAR(16) NOT NULL,
  text_value VARCHAR(255) DEFAULT NULL,
  number_value DOUBLE DEFAULT NULL,
  time_value BIGINT DEFAULT NULL,
  created_at BIGINT NOT NULL,
  PRIMARY KEY (run_id, name),
  KEY perdure_attributes_by_text (name, text_value, created_at, run_id),
  KEY perdure_attributes_by_number (name, number_value, created_at, run_id, kind),
  KEY perdure_attributes_by_time (name, time_value, created_at, run_id),
  KEY perdure_attributes_by_age (name, created_at, run_id),
  CHECK (kind IN ('text', 'integer', 'float', 'bool', 'time'))
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4
  /*M! COLLATE utf8mb4_nopad_bin */ /*!50700 COLLATE utf8mb4_0900_bin */;

ALTER TABLE perdure_schedules ADD COLUMN /*M! IF NOT EXISTS */ attributes LONGTEXT NOT NULL DEFAULT ('{}');
