-- heartbeat, version 1: a worker says that it still works on a run, and learns whether it is to stop.
-- @id, @token, @nonce: as `claim` gave them
-- @lease: microseconds from now after which the run is given to others
-- Gives one row: lease_until, cancelled (1: stop, then `fail`); or none: somebody else has the run by now, so drop it.
UPDATE perdure_runs
SET lease_until = LEAST(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + @lease, deadline)
WHERE id = @id AND token = @token AND nonce = @nonce AND status = 'running';
SELECT lease_until, EXISTS (
    SELECT 1 FROM perdure_messages m WHERE m.run_id = r.id AND m.seq > r.inbox_read AND m.kind = 'cancel'
  ) AS cancelled
FROM perdure_runs r
WHERE id = @id AND token = @token AND nonce = @nonce AND status = 'running';
