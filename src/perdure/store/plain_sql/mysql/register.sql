-- register, version 1: a worker says that it serves a type; once for each, at its start.
-- @type
-- @runtime: what the worker is written in or how it is called, such as 'node'
-- @description: for people; NULL: none
-- Gives one row: enabled (0: the type is paused, and no run of it is given out until it is resumed).
INSERT INTO perdure_registry (type, kind, runtime, description)
VALUES (@type, 'activity', @runtime, COALESCE(@description, ''))
ON DUPLICATE KEY UPDATE
  registered_at = IF(kind = 'activity' AND runtime = VALUES(runtime) AND description = VALUES(description), registered_at, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))),
  kind = VALUES(kind), runtime = VALUES(runtime), description = VALUES(description);
SELECT NOT EXISTS (SELECT 1 FROM perdure_pauses WHERE kind = 'type' AND name = @type) AS enabled;
