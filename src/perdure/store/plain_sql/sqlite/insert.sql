-- insert, version 1: start a run, once for each idempotency key.
-- :type: such as 'notify.email.v1'
-- :input: a JSON object (arguments by name) or array (by position); NULL: none
-- :idempotency_key: NULL: none, so that every call starts another run
-- :queue: NULL: 'default'
-- :priority: lower first; NULL: 100
-- :run_at: microseconds since 1970 in UTC; NULL: now
-- :max_attempts: NULL: as declared in code
-- Returns one row: id, created (0: it existed under that key).
BEGIN IMMEDIATE;
DROP TABLE IF EXISTS temp.perdure_asked;
CREATE TEMP TABLE perdure_asked AS
SELECT now, COALESCE(:run_at, 0) > now AS later,
  COALESCE((SELECT id FROM perdure_runs WHERE idempotency_key = :idempotency_key), lower(hex(randomblob(16)))) AS id
FROM (SELECT CAST(ROUND((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000 AS now);
INSERT INTO perdure_runs
  (id, type, input, idempotency_key, queue, priority, max_attempts, status, reason, wake_at, created_at)
SELECT id, :type, COALESCE(json(:input), '{}'), :idempotency_key, COALESCE(:queue, 'default'), COALESCE(:priority, 100),
  COALESCE(:max_attempts, 0), CASE WHEN later THEN 'waiting' ELSE 'pending' END, CASE WHEN later THEN 'timer' END,
  CASE WHEN later THEN :run_at ELSE now END, now
FROM temp.perdure_asked
WHERE id NOT IN (SELECT r.id FROM perdure_runs r WHERE r.idempotency_key = :idempotency_key);
INSERT INTO perdure_events (run_id, at, kind, actor, data)
SELECT id, now, 'created', 'sql', json_object('type', :type)
FROM temp.perdure_asked
WHERE changes() > 0;
SELECT id, changes() AS created
FROM temp.perdure_asked;
COMMIT;
