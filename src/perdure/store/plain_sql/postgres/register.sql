-- register, version 1: a worker says that it serves a type; once for each, at its start.
-- $1 type: text
-- $2 runtime: text, what the worker is written in or how it is called, such as 'node'
-- $3 description: text, for people; NULL: none
-- Gives one row: enabled (false: the type is paused, and no run of it is given out until it is resumed).
WITH done AS (
  INSERT INTO perdure_registry AS r (type, kind, runtime, description)
  VALUES ($1::text, 'activity', $2::text, COALESCE($3::text, ''))
  ON CONFLICT (type) DO UPDATE
  SET kind = EXCLUDED.kind, runtime = EXCLUDED.runtime, description = EXCLUDED.description, registered_at = EXCLUDED.registered_at
  WHERE (r.kind, r.runtime, r.description) <> (EXCLUDED.kind, EXCLUDED.runtime, EXCLUDED.description)
)
SELECT NOT EXISTS (SELECT 1 FROM perdure_pauses WHERE kind = 'type' AND name = $1::text) AS enabled;
