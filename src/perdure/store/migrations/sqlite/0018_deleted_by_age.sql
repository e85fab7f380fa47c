CREATE INDEX IF NOT EXISTS perdure_runs_deleted_by_age ON perdure_runs (created_at, id) WHERE deleted_at > 0;
