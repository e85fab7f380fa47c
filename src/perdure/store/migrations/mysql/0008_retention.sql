CREATE INDEX /*M! IF NOT EXISTS */ perdure_runs_deleted ON perdure_runs (deleted_at, id);
