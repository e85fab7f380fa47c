-- claim, version 2: claim ready activities of some types in the order of priority, an eighth of them by age
-- alone.
-- @worker: the name of the worker
-- @nonce: random and new for every claim; a repetition with the same nonce returns the same runs
-- @types: a type, or a prefix of types followed by %, such as 'billing.%'; nothing else is special in it
-- @queue: NULL: 'default'
-- @number: maximum number of runs
-- @lease: microseconds from now after which other workers get the run, unless `heartbeat` renews it
-- @runtime: as given to `register`: types of other runtimes are left out; NULL: only types of Python are
-- Returns one row for each run: id, token, nonce, type, input (JSON), attempt, max_attempts (0: no limit), options
-- (JSON), deadline, lease_until, cancelled (1: it was asked to stop; `fail` it), details (JSON of the last heartbeat;
-- NULL: none).
-- A run that two workers in a row have lost is claimed alone.
-- Of types that no worker has registered, it reads the first eight that have ready runs.
SET @now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), @in_queue = COALESCE(@queue, 'default'), @many = RIGHT(@types, 1) = '%';
SET @beginning = IF(@many, LEFT(@types, CHAR_LENGTH(@types) - 1), @types);
SET @ending = IF(@many, CONCAT(@beginning, REPEAT(CONVERT(_utf32 x'0010FFFF' USING utf8mb4), 200)), @beginning);
SET @by_age = @number DIV 8 + (RAND() * 8 < @number % 8);
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
START TRANSACTION;
SELECT (
  SELECT type FROM perdure_runs FORCE INDEX (perdure_runs_to_claim)
  WHERE ready_queue = @in_queue AND type >= @beginning AND type <= @ending ORDER BY type LIMIT 1
) INTO @type1;
SELECT (
  SELECT type FROM perdure_runs FORCE INDEX (perdure_runs_to_claim)
  WHERE ready_queue = @in_queue AND type > @type1 AND type <= @ending ORDER BY type LIMIT 1
) INTO @type2;
SELECT (
  SELECT type FROM perdure_runs FORCE INDEX (perdure_runs_to_claim)
  WHERE ready_queue = @in_queue AND type > @type2 AND type <= @ending ORDER BY type LIMIT 1
) INTO @type3;
SELECT (
  SELECT type FROM perdure_runs FORCE INDEX (perdure_runs_to_claim)
  WHERE ready_queue = @in_queue AND type > @type3 AND type <= @ending ORDER BY type LIMIT 1
) INTO @type4;
SELECT (
  SELECT type FROM perdure_runs FORCE INDEX (perdure_runs_to_claim)
  WHERE ready_queue = @in_queue AND type > @type4 AND type <= @ending ORDER BY type LIMIT 1
) INTO @type5;
SELECT (
  SELECT type FROM perdure_runs FORCE INDEX (perdure_runs_to_claim)
  WHERE ready_queue = @in_queue AND type > @type5 AND type <= @ending ORDER BY type LIMIT 1
) INTO @type6;
SELECT (
  SELECT type FROM perdure_runs FORCE INDEX (perdure_runs_to_claim)
  WHERE ready_queue = @in_queue AND type > @type6 AND type <= @ending ORDER BY type LIMIT 1
) INTO @type7;
SELECT (
  SELECT type FROM perdure_runs FORCE INDEX (perdure_runs_to_claim)
  WHERE ready_queue = @in_queue AND type > @type7 AND type <= @ending ORDER BY type LIMIT 1
) INTO @type8;
SELECT (
  SELECT CONVERT(JSON_ARRAYAGG(found.type) USING utf8mb4)
  FROM (
    SELECT type FROM perdure_registry WHERE type >= @beginning AND type <= @ending
    UNION SELECT @type1 UNION SELECT @type2 UNION SELECT @type3 UNION SELECT @type4
    UNION SELECT @type5 UNION SELECT @type6 UNION SELECT @type7 UNION SELECT @type8
  ) AS found
  WHERE CAST(LEFT(found.type, CHAR_LENGTH(@beginning)) AS BINARY) = CAST(@beginning AS BINARY)
    AND NOT EXISTS (SELECT 1 FROM perdure_runs b WHERE b.status = 'running' AND b.worker = @worker AND b.nonce = @nonce)
    AND NOT EXISTS (SELECT 1 FROM perdure_pauses p WHERE p.kind = 'type' AND p.name = found.type)
    AND NOT EXISTS (SELECT 1 FROM perdure_pauses p WHERE p.kind = 'queue' AND p.name = @in_queue)
    AND NOT EXISTS (SELECT 1 FROM perdure_registry t WHERE t.type = found.type AND (
      t.kind = 'workflow' OR t.runtime = 'python' OR t.runtime NOT IN (@runtime, 'shared')
    ))
) INTO @served;
SELECT (
  WITH RECURSIVE found (type) AS (
    SELECT listed.type
    FROM JSON_TABLE(COALESCE(@served, '[]'), '$[*]' COLUMNS (
      type VARCHAR(200) CHARACTER SET utf8mb4 /*M! COLLATE utf8mb4_nopad_bin */ /*!50700 COLLATE utf8mb4_0900_bin */ PATH '$'
    )) AS listed
  ), walk (id, step) AS (
    SELECT (
      SELECT r.id FROM perdure_runs r FORCE INDEX (perdure_runs_to_claim)
      WHERE r.ready_queue = @in_queue AND r.type = found.type AND r.wake_at <= @now AND r.deadline > @now
      ORDER BY r.priority, r.wake_at, r.id LIMIT 1
    ), 1
    FROM found
    UNION ALL
    SELECT COALESCE((
      SELECT r.id FROM perdure_runs r FORCE INDEX (perdure_runs_to_claim)
      WHERE r.ready_queue = @in_queue AND r.type = c.type AND r.wake_at <= @now AND r.deadline > @now
        AND r.priority = c.priority AND r.wake_at = c.wake_at AND r.id > c.id
      ORDER BY r.priority, r.wake_at, r.id LIMIT 1
    ), (
      SELECT r.id FROM perdure_runs r FORCE INDEX (perdure_runs_to_claim)
      WHERE r.ready_queue = @in_queue AND r.type = c.type AND r.wake_at <= @now AND r.deadline > @now
        AND r.priority = c.priority AND r.wake_at > c.wake_at
      ORDER BY r.priority, r.wake_at, r.id LIMIT 1
    ), (
      SELECT r.id FROM perdure_runs r FORCE INDEX (perdure_runs_to_claim)
      WHERE r.ready_queue = @in_queue AND r.type = c.type AND r.wake_at <= @now AND r.deadline > @now
        AND r.priority > c.priority
      ORDER BY r.priority, r.wake_at, r.id LIMIT 1
    )), walk.step + 1
    FROM walk
    JOIN perdure_runs c ON c.id = walk.id
    WHERE walk.step < @number
  )
  SELECT CONVERT(JSON_ARRAYAGG(id) USING utf8mb4) FROM walk WHERE id IS NOT NULL
) INTO @by_priority;
SELECT (
  WITH RECURSIVE found (type) AS (
    SELECT listed.type
    FROM JSON_TABLE(COALESCE(@served, '[]'), '$[*]' COLUMNS (
      type VARCHAR(200) CHARACTER SET utf8mb4 /*M! COLLATE utf8mb4_nopad_bin */ /*!50700 COLLATE utf8mb4_0900_bin */ PATH '$'
    )) AS listed
  ), walk (id, step) AS (
    SELECT (
      SELECT r.id FROM perdure_runs r FORCE INDEX (perdure_runs_to_claim_by_age)
      WHERE r.ready_queue = @in_queue AND r.type = found.type AND r.wake_at <= @now AND r.deadline > @now
      ORDER BY r.wake_at, r.id LIMIT 1
    ), 1
    FROM found
    UNION ALL
    SELECT COALESCE((
      SELECT r.id FROM perdure_runs r FORCE INDEX (perdure_runs_to_claim_by_age)
      WHERE r.ready_queue = @in_queue AND r.type = c.type AND r.wake_at <= @now AND r.deadline > @now
        AND r.wake_at = c.wake_at AND r.id > c.id
      ORDER BY r.wake_at, r.id LIMIT 1
    ), (
      SELECT r.id FROM perdure_runs r FORCE INDEX (perdure_runs_to_claim_by_age)
      WHERE r.ready_queue = @in_queue AND r.type = c.type AND r.wake_at <= @now AND r.deadline > @now
        AND r.wake_at > c.wake_at
      ORDER BY r.wake_at, r.id LIMIT 1
    )), walk.step + 1
    FROM walk
    JOIN perdure_runs c ON c.id = walk.id
    WHERE walk.step < @number
  )
  SELECT CONVERT(JSON_ARRAYAGG(id) USING utf8mb4) FROM walk WHERE id IS NOT NULL
) INTO @oldest;
SET @candidates = JSON_MERGE_PRESERVE(COALESCE(@by_priority, '[]'), COALESCE(@oldest, '[]'));
SELECT CONVERT(JSON_ARRAYAGG(r.id) USING utf8mb4) INTO @ready
FROM (SELECT DISTINCT listed.id FROM JSON_TABLE(@candidates, '$[*]' COLUMNS (
  id VARCHAR(255) CHARACTER SET utf8mb4 /*M! COLLATE utf8mb4_nopad_bin */ /*!50700 COLLATE utf8mb4_0900_bin */ PATH '$'
)) AS listed) AS candidate
STRAIGHT_JOIN perdure_runs r FORCE INDEX (PRIMARY) ON r.id = candidate.id
WHERE r.status = 'pending' AND r.wake_at <= @now
FOR UPDATE SKIP LOCKED;
SELECT (
  WITH ranked AS (
    SELECT r.id, r.claims, r.wake_at, ROW_NUMBER() OVER (ORDER BY r.priority, r.wake_at, r.id) AS place,
      FIRST_VALUE(r.claims) OVER (ORDER BY r.priority, r.wake_at, r.id) AS claims_of_first
    FROM JSON_TABLE(COALESCE(@ready, '[]'), '$[*]' COLUMNS (
  id VARCHAR(255) CHARACTER SET utf8mb4 /*M! COLLATE utf8mb4_nopad_bin */ /*!50700 COLLATE utf8mb4_0900_bin */ PATH '$'
)) AS listed
    STRAIGHT_JOIN perdure_runs r FORCE INDEX (PRIMARY) ON r.id = listed.id
    WHERE r.inbox_seq = r.inbox_read OR NOT COALESCE((
      SELECT m.kind FROM perdure_messages m
      WHERE m.run_id = r.id AND m.seq > r.inbox_read AND m.kind IN ('pause', 'resume', 'cancel') ORDER BY m.seq DESC LIMIT 1
    ), '') = 'pause'
  ), fit AS (
    SELECT ranked.id, ranked.wake_at, ROW_NUMBER() OVER (ORDER BY ranked.place) AS turn
    FROM ranked
    WHERE IF(ranked.claims_of_first > 1, ranked.place = 1, ranked.claims < 2)
  ), shared AS (
    SELECT fit.id, fit.turn <= @number - @by_age AS by_priority,
      ROW_NUMBER() OVER (PARTITION BY fit.turn <= @number - @by_age ORDER BY fit.wake_at, fit.id) AS age
    FROM fit
  )
  SELECT CONVERT(JSON_ARRAYAGG(shared.id) USING utf8mb4) FROM shared WHERE shared.by_priority OR shared.age <= @by_age
) INTO @chosen;
UPDATE perdure_runs r
JOIN JSON_TABLE(COALESCE(@chosen, '[]'), '$[*]' COLUMNS (
  id VARCHAR(255) CHARACTER SET utf8mb4 /*M! COLLATE utf8mb4_nopad_bin */ /*!50700 COLLATE utf8mb4_0900_bin */ PATH '$'
)) AS listed ON r.id = listed.id
SET r.status = 'running', r.reason = NULL, r.worker = @worker, r.home = NULL, r.nonce = @nonce, r.token = r.token + 1,
  r.claims = r.claims + 1, r.progress = COALESCE((SELECT MAX(h.seq) FROM perdure_history h WHERE h.run_id = r.id), -1),
  r.started_at = IF(r.started_at = 0, @now, r.started_at), r.seed = IF(r.seed = '', LEFT(SHA2(CONCAT(@nonce, r.id, RAND()), 256), 32), r.seed),
  r.marked = r.inbox_seq > r.inbox_read, r.lease_until = LEAST(@now + @lease, IF(r.close_by > 0, r.close_by, r.deadline)),
  r.deadline = IF(r.close_by > 0, r.close_by, r.deadline), r.close_by = 0;
INSERT INTO perdure_events (run_id, at, kind, actor, data)
SELECT r.id, r.created_at, 'created', 'sql', JSON_OBJECT('type', r.type)
FROM JSON_TABLE(COALESCE(@chosen, '[]'), '$[*]' COLUMNS (
  id VARCHAR(255) CHARACTER SET utf8mb4 /*M! COLLATE utf8mb4_nopad_bin */ /*!50700 COLLATE utf8mb4_0900_bin */ PATH '$'
)) AS listed
STRAIGHT_JOIN perdure_runs r FORCE INDEX (PRIMARY) ON r.id = listed.id
WHERE r.write_id = '' AND NOT EXISTS (SELECT 1 FROM perdure_events e WHERE e.run_id = r.id AND e.kind = 'created');
INSERT INTO perdure_events (run_id, at, kind, actor, data)
SELECT r.id, @now, 'started', @worker, JSON_OBJECT('token', r.token, 'attempt', r.attempt)
FROM JSON_TABLE(COALESCE(@chosen, '[]'), '$[*]' COLUMNS (
  id VARCHAR(255) CHARACTER SET utf8mb4 /*M! COLLATE utf8mb4_nopad_bin */ /*!50700 COLLATE utf8mb4_0900_bin */ PATH '$'
)) AS listed
STRAIGHT_JOIN perdure_runs r FORCE INDEX (PRIMARY) ON r.id = listed.id
WHERE r.started_at = @now;
COMMIT;
SELECT id, token, nonce, type, input, attempt, max_attempts, options, deadline, lease_until, EXISTS (
    SELECT 1 FROM perdure_messages m WHERE m.run_id = r.id AND m.seq > r.inbox_read AND m.kind = 'cancel'
  ) AS cancelled, (SELECT o.payload FROM perdure_outputs o WHERE o.run_id = r.id AND o.kind = 'beat' AND o.name = '') AS details
FROM perdure_runs r
WHERE status = 'running' AND worker = @worker AND nonce = @nonce
ORDER BY priority, wake_at, id;
