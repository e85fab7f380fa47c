-- register, version 1: announce that a worker serves a type; once for each type, when the worker starts.
-- $1 type: text
-- $2 runtime: text, language or name of the worker, such as 'node'
-- $3 description: text, free text; NULL: none
-- Returns one row: enabled (false: the type is paused, and none of its runs can be claimed until it is resumed).
WITH done AS (
  INSERT INTO perdure_registry AS r (type, kind, runtime, description)
  VALUES ($1::text, 'activity', $2::text, COALESCE($3::text, ''))
  ON CONFLICT (type) DO UPDATE
  SET kind = EXCLUDED.kind, runtime = EXCLUDED.runtime, description = EXCLUDED.description, registered_at = EXCLUDED.registered_at
  WHERE (r.kind, r.runtime, r.description) <> (EXCLUDED.kind, EXCLUDED.runtime, EXCLUDED.description)
)
SELECT NOT EXISTS (SELECT 1 FROM perdure_pauses WHERE kind = 'type' AND name = $1::text) AS enabled;
