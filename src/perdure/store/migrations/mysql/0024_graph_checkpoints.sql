CREATE TABLE IF NOT EXISTS perdure_graph_checkpoints (
  thread VARCHAR(255) NOT NULL,
  space VARCHAR(200) NOT NULL DEFAULT '',
  checkpoint VARCHAR(64) NOT NULL,
  entry VARCHAR(100) NOT NULL DEFAULT '',
  parent VARCHAR(64) NOT NULL DEFAULT '',
  run VARCHAR(255) NOT NULL DEFAULT '',
  metadata LONGTEXT NOT NULL DEFAULT (''),
  body LONGTEXT NOT NULL DEFAULT (''),
  at BIGINT NOT NULL DEFAULT 0,
  PRIMARY KEY (thread, space, checkpoint, entry),
  KEY perdure_graph_checkpoints_by_run (run)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4
  /*M! COLLATE utf8mb4_nopad_bin */ /*!50700 COLLATE utf8mb4_0900_bin */;
