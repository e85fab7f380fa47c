-- claim, version 2: claim ready activities of some types in the order of priority, an eighth of them by age
-- alone.
-- $1 worker: text, the name of the worker
-- $2 nonce: text, random and new for every claim; a repetition with the same nonce returns the same runs
-- $3 types: text, a type, or a prefix of types followed by %, such as 'billing.%'; nothing else is special in it
-- $4 queue: text; NULL: 'default'
-- $5 number: bigint, maximum number of runs
-- $6 lease: bigint, microseconds from now after which other workers get the run, unless `heartbeat` renews it
-- $7 runtime: text, as given to `register`: types of other runtimes are left out; NULL: only types of Python are
-- Returns one row for each run: id, token, nonce, type, input (JSON), attempt, max_attempts (0: no limit), options
-- (JSON), deadline, lease_until, cancelled (true: it was asked to stop; `fail` it), details (JSON of the last
-- heartbeat; NULL: none).
-- A run that two workers in a row have lost is claimed alone.
WITH RECURSIVE asked AS MATERIALIZED (
  SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now, COALESCE($4::text, 'default') COLLATE "C" AS queue,
    right($3::text, 1) = '%' AS many,
    (CASE WHEN right($3::text, 1) = '%' THEN left($3::text, -1) ELSE $3::text END) COLLATE "C" AS beginning,
    $5::bigint AS number, $5::bigint / 8 + CASE WHEN random() * 8 < $5::bigint % 8 THEN 1 ELSE 0 END AS by_age
), before AS MATERIALIZED (
  SELECT id FROM perdure_runs WHERE status = 'running' AND worker = $1::text AND nonce = $2::text
), found (type) AS (
  (
    SELECT r.type
    FROM perdure_runs r
    WHERE r.status = 'pending' AND r.queue = (SELECT queue FROM asked) AND r.type >= (SELECT beginning FROM asked)
    ORDER BY r.queue, r.type
    LIMIT 1
  )
  UNION ALL
  SELECT (
    SELECT r.type
    FROM perdure_runs r
    WHERE r.status = 'pending' AND r.queue = (SELECT queue FROM asked) AND r.type > found.type
    ORDER BY r.queue, r.type
    LIMIT 1
  )
  FROM found
  WHERE (SELECT many AND starts_with(found.type, beginning) FROM asked)
), served AS MATERIALIZED (
  SELECT found.type
  FROM found, asked
  WHERE CASE WHEN many THEN starts_with(found.type, beginning) ELSE found.type = beginning END
    AND NOT EXISTS (SELECT 1 FROM before)
    AND NOT EXISTS (
      SELECT 1 FROM perdure_pauses p
      WHERE (p.kind = 'type' AND p.name = found.type) OR (p.kind = 'queue' AND p.name = asked.queue)
    )
    AND NOT EXISTS (SELECT 1 FROM perdure_registry t WHERE t.type = found.type AND (
      t.kind = 'workflow' OR t.runtime = 'python' OR t.runtime NOT IN ($7::text, 'shared')
    ))
), ready AS MATERIALIZED (
  SELECT one.id, one.priority, one.wake_at, one.claims,
    first_value(one.claims) OVER (ORDER BY one.priority, one.wake_at, one.id) AS claims_of_first,
    row_number() OVER (ORDER BY one.priority, one.wake_at, one.id) AS place
  FROM served
  CROSS JOIN LATERAL (
    SELECT r.id, r.priority, r.wake_at, r.claims
    FROM perdure_runs r
    WHERE r.status = 'pending' AND r.queue = (SELECT queue FROM asked) AND r.type = served.type
      AND r.wake_at <= (SELECT now FROM asked) AND r.deadline > (SELECT now FROM asked)
      AND (r.inbox_seq = r.inbox_read OR (
        SELECT m.kind FROM perdure_messages m
        WHERE m.run_id = r.id AND m.seq > r.inbox_read AND m.kind IN ('pause', 'resume', 'cancel') ORDER BY m.seq DESC LIMIT 1
      ) IS DISTINCT FROM 'pause')
    ORDER BY r.priority, r.wake_at, r.id
    LIMIT (SELECT number FROM asked)
    FOR NO KEY UPDATE SKIP LOCKED
  ) one
), first AS MATERIALIZED (
  SELECT id, place
  FROM ready
  WHERE CASE WHEN claims_of_first > 1 THEN place = 1 ELSE claims < 2 END
  ORDER BY place
  LIMIT (SELECT CASE WHEN EXISTS (SELECT 1 FROM ready WHERE claims_of_first > 1) THEN 1 ELSE number - by_age END FROM asked)
), aged AS MATERIALIZED (
  SELECT one.id, 1000000 + row_number() OVER (ORDER BY one.wake_at, one.id) AS place
  FROM served
  CROSS JOIN LATERAL (
    SELECT r.id, r.wake_at
    FROM perdure_runs r
    WHERE r.status = 'pending' AND r.queue = (SELECT queue FROM asked) AND r.type = served.type AND r.wake_at >= 0
      AND r.wake_at <= (SELECT now FROM asked) AND r.deadline > (SELECT now FROM asked) AND r.claims < 2
      AND r.inbox_seq = r.inbox_read AND r.id <> ALL (ARRAY(SELECT id FROM first))
    ORDER BY r.wake_at, r.id
    LIMIT (SELECT CASE WHEN EXISTS (SELECT 1 FROM ready WHERE claims_of_first > 1) THEN 0 ELSE by_age END FROM asked)
    FOR NO KEY UPDATE SKIP LOCKED
  ) one
  ORDER BY one.wake_at, one.id
  LIMIT (SELECT by_age FROM asked)
), chosen AS MATERIALIZED (
  SELECT id, place FROM first UNION ALL SELECT id, place FROM aged
), taken AS (
  UPDATE perdure_runs r
  SET status = 'running', reason = NULL, worker = $1::text, home = NULL, nonce = $2::text, token = r.token + 1,
    claims = r.claims + 1, progress = COALESCE((SELECT MAX(h.seq) FROM perdure_history h WHERE h.run_id = r.id), -1),
    started_at = CASE WHEN r.started_at = 0 THEN now ELSE r.started_at END,
    deadline = CASE WHEN r.close_by > 0 THEN r.close_by ELSE r.deadline END, close_by = 0,
    seed = CASE WHEN r.seed = '' THEN replace(gen_random_uuid()::text, '-', '') ELSE r.seed END,
    marked = CASE WHEN r.inbox_seq > r.inbox_read THEN 1 ELSE 0 END,
    lease_until = LEAST(now + $6::bigint, CASE WHEN r.close_by > 0 THEN r.close_by ELSE r.deadline END)
  FROM chosen, asked
  /* The second condition is always true. It lets the planner expect one row, and so find each by its key. */
  WHERE r.id = chosen.id AND chosen.place % 1 = 0
  RETURNING chosen.place, r.id, r.token, r.nonce, r.type, r.input, r.attempt, r.max_attempts, r.options, r.deadline,
    r.lease_until, r.inbox_seq, r.inbox_read, r.started_at = now AS starts, r.write_id, r.created_at
), noted AS (
  INSERT INTO perdure_events (run_id, at, kind, actor, data)
  SELECT t.id, t.created_at, 'created', 'sql', json_build_object('type', t.type)::text
  FROM taken t
  WHERE t.write_id = '' AND NOT EXISTS (SELECT 1 FROM perdure_events e WHERE e.run_id = t.id AND e.kind = 'created')
  UNION ALL
  SELECT id, now, 'started', $1::text, json_build_object('token', token, 'attempt', attempt)::text FROM taken, asked WHERE starts
), given AS (
  SELECT * FROM taken
  UNION ALL
  SELECT 0, r.id, r.token, r.nonce, r.type, r.input, r.attempt, r.max_attempts, r.options, r.deadline, r.lease_until, r.inbox_seq,
    r.inbox_read, FALSE, '', 0
  FROM perdure_runs r
  JOIN before ON before.id = r.id
)
SELECT id, token, nonce, type, input, attempt, max_attempts, options, deadline, lease_until,
  inbox_seq > inbox_read AND EXISTS (
    SELECT 1 FROM perdure_messages m WHERE m.run_id = given.id AND m.seq > given.inbox_read AND m.kind = 'cancel'
  ) AS cancelled,
  (SELECT o.payload FROM perdure_outputs o WHERE o.run_id = given.id AND o.kind = 'beat' AND o.name = '') AS details
FROM given
ORDER BY place, id;
