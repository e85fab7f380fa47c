-- claim, version 2: claim ready activities of some types in the order of priority, an eighth of them by age
-- alone.
-- :worker: the name of the worker
-- :nonce: random and new for every claim; a repetition with the same nonce returns the same runs
-- :types: a type, or a prefix of types followed by %, such as 'billing.%'; nothing else is special in it
-- :queue: NULL: 'default'
-- :number: maximum number of runs
-- :lease: microseconds from now after which other workers get the run, unless `heartbeat` renews it
-- :runtime: as given to `register`: types of other runtimes are left out; NULL: only types of Python are
-- Returns one row for each run: id, token, nonce, type, input (JSON), attempt, max_attempts (0: no limit), options
-- (JSON), deadline, lease_until, cancelled (1: it was asked to stop; `fail` it), details (JSON of the last heartbeat;
-- NULL: none).
-- A run that two workers in a row have lost is claimed alone.
BEGIN IMMEDIATE;
DROP TABLE IF EXISTS temp.perdure_asked;
CREATE TEMP TABLE perdure_asked AS
SELECT CAST(ROUND((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000 AS now, COALESCE(:queue, 'default') AS queue,
  substr(:types, -1) = '%' AS many,
  CASE WHEN substr(:types, -1) = '%' THEN substr(:types, 1, length(:types) - 1) ELSE :types END AS beginning,
  CAST(:number AS INTEGER) AS number,
  CAST(:number AS INTEGER) / 8 + (abs(random() % 8) < CAST(:number AS INTEGER) % 8) AS by_age,
  EXISTS (SELECT 1 FROM perdure_runs WHERE status = 'running' AND worker = :worker AND nonce = :nonce) AS repeated;
DROP TABLE IF EXISTS temp.perdure_served;
CREATE TEMP TABLE perdure_served AS
WITH RECURSIVE found (type) AS (
  SELECT MIN(r.type)
  FROM perdure_runs r INDEXED BY perdure_runs_to_claim
  WHERE r.status = 'pending' AND r.queue = (SELECT queue FROM perdure_asked) AND r.type >= (SELECT beginning FROM perdure_asked)
  UNION ALL
  SELECT (
    SELECT MIN(r.type)
    FROM perdure_runs r INDEXED BY perdure_runs_to_claim
    WHERE r.status = 'pending' AND r.queue = (SELECT queue FROM perdure_asked) AND r.type > found.type
  )
  FROM found
  WHERE (SELECT many AND substr(found.type, 1, length(beginning)) = beginning FROM perdure_asked)
)
SELECT found.type
FROM found, perdure_asked a
WHERE CASE WHEN many THEN substr(found.type, 1, length(beginning)) = beginning ELSE found.type = beginning END
  AND NOT repeated
  AND NOT EXISTS (
    SELECT 1 FROM perdure_pauses p
    WHERE (p.kind = 'type' AND p.name = found.type) OR (p.kind = 'queue' AND p.name = a.queue)
  )
  AND NOT EXISTS (SELECT 1 FROM perdure_registry t WHERE t.type = found.type AND (
      t.kind = 'workflow' OR t.runtime = 'python' OR t.runtime NOT IN (:runtime, 'shared')
    ));
DROP TABLE IF EXISTS temp.perdure_ready;
CREATE TEMP TABLE perdure_ready AS
SELECT r.id, r.claims, row_number() OVER (ORDER BY r.priority, r.wake_at, r.id) AS place,
  first_value(r.claims) OVER (ORDER BY r.priority, r.wake_at, r.id) > 1 AS alone
FROM perdure_served s
CROSS JOIN perdure_runs r
WHERE r.id IN (
  SELECT o.id
  FROM perdure_runs o INDEXED BY perdure_runs_to_claim
  WHERE o.status = 'pending' AND o.queue = (SELECT queue FROM perdure_asked) AND o.type = s.type
    AND o.wake_at <= (SELECT now FROM perdure_asked) AND o.deadline > (SELECT now FROM perdure_asked)
    AND (o.inbox_seq = o.inbox_read OR (
      SELECT m.kind FROM perdure_messages m
      WHERE m.run_id = o.id AND m.seq > o.inbox_read AND m.kind IN ('pause', 'resume', 'cancel') ORDER BY m.seq DESC LIMIT 1
    ) IS NOT 'pause')
  ORDER BY o.priority, o.wake_at, o.id
  LIMIT (SELECT number FROM perdure_asked)
);
DELETE FROM temp.perdure_ready
WHERE CASE WHEN alone THEN place > 1 ELSE claims > 1 END;
DELETE FROM temp.perdure_ready
WHERE id NOT IN (
  SELECT id FROM temp.perdure_ready ORDER BY place
  LIMIT (SELECT CASE WHEN (SELECT MAX(alone) FROM temp.perdure_ready) THEN 1 ELSE number - by_age END FROM temp.perdure_asked)
);
INSERT INTO temp.perdure_ready (id, claims, place, alone)
SELECT r.id, r.claims, 1000000 + row_number() OVER (ORDER BY r.wake_at, r.id), 0
FROM perdure_served s
CROSS JOIN perdure_runs r
WHERE r.id IN (
  SELECT o.id
  FROM perdure_runs o INDEXED BY perdure_runs_to_claim_by_age
  WHERE o.status = 'pending' AND o.queue = (SELECT queue FROM perdure_asked) AND o.type = s.type
    AND o.wake_at <= (SELECT now FROM perdure_asked) AND o.deadline > (SELECT now FROM perdure_asked)
    AND o.claims < 2 AND o.inbox_seq = o.inbox_read AND o.id NOT IN (SELECT id FROM temp.perdure_ready)
  ORDER BY o.wake_at, o.id
  LIMIT (SELECT CASE WHEN (SELECT MAX(alone) FROM temp.perdure_ready) THEN 0 ELSE by_age END FROM perdure_asked)
)
ORDER BY r.wake_at, r.id
LIMIT (SELECT by_age FROM perdure_asked);
UPDATE perdure_runs
SET status = 'running', reason = NULL, worker = :worker, home = NULL, nonce = :nonce, token = token + 1, claims = claims + 1,
  progress = COALESCE((SELECT MAX(h.seq) FROM perdure_history h WHERE h.run_id = perdure_runs.id), -1),
  started_at = CASE WHEN started_at = 0 THEN a.now ELSE started_at END,
  deadline = CASE WHEN close_by > 0 THEN close_by ELSE deadline END, close_by = 0,
  seed = CASE WHEN seed = '' THEN lower(hex(randomblob(16))) ELSE seed END,
  marked = CASE WHEN inbox_seq > inbox_read THEN 1 ELSE 0 END,
  lease_until = MIN(a.now + :lease, CASE WHEN close_by > 0 THEN close_by ELSE deadline END)
FROM temp.perdure_asked a
WHERE id IN (SELECT id FROM temp.perdure_ready);
INSERT INTO perdure_events (run_id, at, kind, actor, data)
SELECT r.id, r.created_at, 'created', 'sql', json_object('type', r.type)
FROM temp.perdure_ready c
JOIN perdure_runs r ON r.id = c.id
WHERE r.write_id = '' AND NOT EXISTS (SELECT 1 FROM perdure_events e WHERE e.run_id = r.id AND e.kind = 'created');
INSERT INTO perdure_events (run_id, at, kind, actor, data)
SELECT r.id, a.now, 'started', :worker, json_object('token', r.token, 'attempt', r.attempt)
FROM temp.perdure_asked a, temp.perdure_ready c
JOIN perdure_runs r ON r.id = c.id
WHERE r.started_at = a.now;
SELECT r.id, r.token, r.nonce, r.type, r.input, r.attempt, r.max_attempts, r.options, r.deadline, r.lease_until, EXISTS (
    SELECT 1 FROM perdure_messages m WHERE m.run_id = r.id AND m.seq > r.inbox_read AND m.kind = 'cancel'
  ) AS cancelled, (SELECT o.payload FROM perdure_outputs o WHERE o.run_id = r.id AND o.kind = 'beat' AND o.name = '') AS details
FROM perdure_runs r
LEFT JOIN temp.perdure_ready c ON c.id = r.id
WHERE r.status = 'running' AND r.worker = :worker AND r.nonce = :nonce
ORDER BY c.place, r.id;
COMMIT;
