-- register, version 1: announce that a worker serves a type; once for each type, when the worker starts.
-- @type
-- @runtime: language or name of the worker, such as 'node'; 'shared': workers of other runtimes may claim it, too
-- @description: free text; NULL: none
-- Returns one row: enabled (0: the type is paused, or belongs to another
-- runtime: none of its runs can be claimed).
INSERT INTO perdure_registry (type, kind, runtime, description)
VALUES (@type, 'activity', @runtime, COALESCE(@description, ''))
ON DUPLICATE KEY UPDATE
  registered_at = IF(
    (runtime = VALUES(runtime) OR (kind = 'activity' AND VALUES(runtime) = 'shared'))
      AND NOT (kind = 'activity' AND runtime = VALUES(runtime) AND description = VALUES(description)),
    TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), registered_at),
  description = IF(runtime = VALUES(runtime) OR (kind = 'activity' AND VALUES(runtime) = 'shared'), VALUES(description), description),
  kind = IF(runtime = VALUES(runtime), VALUES(kind), kind),
  runtime = IF(kind = 'activity' AND VALUES(runtime) = 'shared', VALUES(runtime), runtime);
SELECT NOT EXISTS (SELECT 1 FROM perdure_pauses WHERE kind = 'type' AND name = @type)
  AND runtime IN (@runtime, 'shared') AS enabled
FROM perdure_registry WHERE type = @type;
