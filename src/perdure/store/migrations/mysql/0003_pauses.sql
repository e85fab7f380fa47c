CREATE TABLE IF NOT EXISTS perdure_pauses (
  kind VARCHAR(16) NOT NULL,
  name VARCHAR(200) NOT NULL,
  reason TEXT NOT NULL DEFAULT (''),
  actor VARCHAR(255) NOT NULL DEFAULT '',
  paused_at BIGINT NOT NULL DEFAULT 0,
  PRIMARY KEY (kind, name),
  CHECK (kind IN ('type', 'queue', 'limited-type', 'limited-queue'))
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4
  /*M! COLLATE utf8mb4_nopad_bin */ /*!50700 COLLATE utf8mb4_0900_bin */;
