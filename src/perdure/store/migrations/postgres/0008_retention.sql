CREATE INDEX IF NOT EXISTS perdure_runs_by_end ON perdure_runs (finished_at, deadline, id) WHERE finished_at > 0;

CREATE INDEX IF NOT EXISTS perdure_runs_deleted ON perdure_runs (deleted_at, id) WHERE deleted_at > 0;
