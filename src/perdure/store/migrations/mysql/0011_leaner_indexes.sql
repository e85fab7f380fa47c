ALTER TABLE perdure_runs
  ADD COLUMN /*M! IF NOT EXISTS */ ready_queue VARCHAR(200) AS (IF(status = 'pending', queue, NULL)) STORED,
  ADD COLUMN /*M! IF NOT EXISTS */ waits_until BIGINT AS (IF(status = 'waiting', wake_at, NULL)) STORED,
  DROP INDEX perdure_runs_to_claim,
  DROP INDEX perdure_runs_to_claim_by_age,
  DROP INDEX perdure_runs_to_wake,
  ADD INDEX perdure_runs_to_claim (ready_queue, type, priority, wake_at, id),
  ADD INDEX perdure_runs_to_claim_by_age (ready_queue, type, wake_at, id),
  ADD INDEX perdure_runs_to_wake (waits_until);
