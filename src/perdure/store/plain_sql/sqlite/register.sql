-- register, version 1: announce that a worker serves a type; once for each type, when the worker starts.
-- :type
-- :runtime: language or name of the worker, such as 'node'; 'shared': workers of other runtimes may claim it, too
-- :description: free text; NULL: none
-- Returns one row: enabled (0: the type is paused, or belongs to another
-- runtime: none of its runs can be claimed).
INSERT INTO perdure_registry (type, kind, runtime, description)
VALUES (:type, 'activity', :runtime, COALESCE(:description, ''))
ON CONFLICT (type) DO UPDATE
SET kind = excluded.kind, runtime = excluded.runtime, description = excluded.description, registered_at = excluded.registered_at
WHERE (kind, runtime, description) <> (excluded.kind, excluded.runtime, excluded.description)
  AND (runtime = excluded.runtime OR (excluded.runtime = 'shared' AND kind = 'activity'));
SELECT NOT EXISTS (SELECT 1 FROM perdure_pauses WHERE kind = 'type' AND name = :type)
  AND runtime IN (:runtime, 'shared') AS enabled
FROM perdure_registry WHERE type = :type;
