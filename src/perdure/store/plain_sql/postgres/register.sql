-- register, version 1: announce that a worker serves a type; once for each type, when the worker starts.
-- $1 type: text
-- $2 runtime: text, language or name of the worker, such as 'node'; 'shared': workers of other runtimes may claim it, too
-- $3 description: text, free text; NULL: none
-- Returns one row: enabled (false: the type is paused, or belongs to another
-- runtime: none of its runs can be claimed).
WITH done AS (
  INSERT INTO perdure_registry AS r (type, kind, runtime, description)
  VALUES ($1::text, 'activity', $2::text, COALESCE($3::text, ''))
  ON CONFLICT (type) DO UPDATE
  SET kind = EXCLUDED.kind, runtime = EXCLUDED.runtime, description = EXCLUDED.description, registered_at = EXCLUDED.registered_at
  WHERE (r.kind, r.runtime, r.description) <> (EXCLUDED.kind, EXCLUDED.runtime, EXCLUDED.description)
    AND (r.runtime = EXCLUDED.runtime OR (EXCLUDED.runtime = 'shared' AND r.kind = 'activity'))
)
SELECT NOT EXISTS (SELECT 1 FROM perdure_pauses WHERE kind = 'type' AND name = $1::text) AND NOT EXISTS (
    SELECT 1 FROM perdure_registry WHERE type = $1::text AND runtime NOT IN ($2::text, 'shared') AND (kind, $2::text) <> ('activity', 'shared')
  ) AS enabled;
