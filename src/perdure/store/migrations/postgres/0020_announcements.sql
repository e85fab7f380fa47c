-- Announces the commits of programs that do not announce them themselves: plain SQL, transactions of the user, older
-- versions. A session with "+perdure:" in its name announces its commits after it has made them, which costs less.
CREATE OR REPLACE FUNCTION perdure_announce() RETURNS trigger LANGUAGE plpgsql AS
$$BEGIN PERFORM pg_catalog.pg_notify('perdure_' || TG_RELID, '15'); RETURN NULL; END$$;

CREATE OR REPLACE TRIGGER perdure_runs_created AFTER INSERT ON perdure_runs
FOR EACH STATEMENT WHEN (current_setting('application_name') NOT LIKE '%+perdure:%')
EXECUTE FUNCTION perdure_announce();

-- A claim and a heartbeat set none of these columns.
CREATE OR REPLACE TRIGGER perdure_runs_changed AFTER UPDATE OF wake_at, inbox_seq, finished_at ON perdure_runs
FOR EACH STATEMENT WHEN (current_setting('application_name') NOT LIKE '%+perdure:%')
EXECUTE FUNCTION perdure_announce();
