CREATE TABLE IF NOT EXISTS perdure_observers (
  target VARCHAR(255) NOT NULL,
  run_id VARCHAR(255) NOT NULL,
  message_key VARCHAR(100) NOT NULL,
  location TEXT NOT NULL,
  kind VARCHAR(8) NOT NULL,
  name VARCHAR(500) NOT NULL,
  position BIGINT NOT NULL,
  seen VARCHAR(100) NOT NULL,
  PRIMARY KEY (target, run_id, message_key),
  KEY perdure_observers_by_run (run_id)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4
  /*M! COLLATE utf8mb4_nopad_bin */ /*!50700 COLLATE utf8mb4_0900_bin */;
