CREATE TABLE IF NOT EXISTS perdure_tokens (
  name VARCHAR(200) NOT NULL,
  parent VARCHAR(200) NOT NULL DEFAULT '',
  digest VARCHAR(64) NOT NULL,
  role VARCHAR(16) NOT NULL,
  created_at BIGINT NOT NULL DEFAULT 0,
  created_by VARCHAR(255) NOT NULL DEFAULT '',
  expires_at BIGINT NOT NULL DEFAULT 0,
  revoked_at BIGINT NOT NULL DEFAULT 0,
  used_at BIGINT NOT NULL DEFAULT 0,
  PRIMARY KEY (name),
  KEY perdure_tokens_by_parent (parent, name),
  UNIQUE KEY perdure_tokens_by_digest (digest),
  CHECK (role IN ('viewer', 'operator', 'admin'))
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4
  /*M! COLLATE utf8mb4_nopad_bin */ /*!50700 COLLATE utf8mb4_0900_bin */;
