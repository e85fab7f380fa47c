"""Invariants of a database: promises that hold at every moment, each as a query for the rows that break it.

The promises: a history without holes, in which each operation has one result, and which no former owner has touched;
one outcome a run; no run that waits for something that has already come; messages taken in once and in order; no run in
a waitlist that no worker looks at. Each query is one statement over committed rows, so it may run beside live workers.
Tests check all of them after every fault; `perdure doctor` checks them on a live database.
"""

from __future__ import annotations

from msgspec import Struct

from perdure.core.ids import WATCH_KEY
from perdure.core.model.run import Reason
from perdure.core.time.duration import NEVER
from perdure.store.sql.packing import PACKED

FINISHED = ("completed", "failed", "cancelled")
_FINISHED = str(FINISHED)
_UNFINISHED = ("pending", "running", "waiting", "blocked")
_BLOCKED_REASONS = str((Reason.DIVERGED.value, Reason.POISON.value, Reason.UNDECODABLE.value, Reason.BROKEN.value))
#: A run that may have less than everything: one that marked a scope, or began anew.
TRIMMED = "(r.generation > 1 OR EXISTS (SELECT 1 FROM perdure_history s WHERE s.run_id = r.id AND s.kind = 'scope'))"

#: Number of records that a row of a history holds.
_HELD = f"CASE WHEN h.kind = '{PACKED}' THEN h.attempts ELSE 1 END"

#: Types whose runs have no history but their failures.
_ACTIVITIES = "(SELECT a.type FROM perdure_registry a WHERE a.kind = 'activity')"


class Invariant(Struct, frozen=True):
    """A promise, as a query for the rows that break it; the first column names the run."""

    promise: str
    broken_by: str
    #: True if the query reads unfinished runs, waitlists or permits only, whose number does not grow with time.
    bounded: bool = False


_ENDS = f"""(
  SELECT r.id, r.status, r.generation, CASE WHEN r.status IN {_FINISHED} THEN 1 ELSE 0 END AS ended,
    SUM(CASE WHEN e.kind IN ('completed', 'failed', 'cancelled', 'expired', 'terminated', 'continued')
      THEN 1 ELSE 0 END) AS ends,
    SUM(CASE WHEN e.kind = 'created' THEN 1 ELSE 0 END) AS beginnings, COUNT(e.run_id) AS told
  FROM perdure_runs r LEFT JOIN perdure_events e ON e.run_id = r.id GROUP BY r.id, r.status, r.generation
) AS counted"""

TRAIL = Invariant(
    "each generation has its final event, unless the audit trail was trimmed, and the last one has it (I3)",
    f"""
    SELECT id, status, generation, ends, beginnings FROM {_ENDS}
    WHERE (told > 0 AND ends < ended) OR (beginnings > 0 AND ends < generation - 1 + ended)
    """,
)

HISTORY = (
    Invariant(
        "the history has no holes but below the last mark of a scope, where it was trimmed (I1)",
        f"""
        SELECT h.run_id, SUM({_HELD}), MIN(h.seq - {_HELD} + 1), MAX(h.seq), MAX(s.mark) FROM perdure_history h
        LEFT JOIN (SELECT run_id, MAX(seq) AS mark FROM perdure_history WHERE kind = 'scope' GROUP BY run_id) AS s
          ON s.run_id = h.run_id
        WHERE s.mark IS NULL OR h.seq >= s.mark
        GROUP BY h.run_id HAVING MIN(h.seq - {_HELD} + 1) <> COALESCE(MAX(s.mark), 0)
          OR SUM({_HELD}) <> MAX(h.seq) - MIN(h.seq - {_HELD} + 1) + 1
        """,
    ),
    Invariant(
        "a packed row holds consecutive records, and the newest record is never packed (I1)",
        f"""
        SELECT run_id, seq, attempts, earlier, later FROM (
          SELECT run_id, seq, kind, attempts, LAG(seq) OVER (PARTITION BY run_id ORDER BY seq) AS earlier,
            LEAD(seq) OVER (PARTITION BY run_id ORDER BY seq) AS later
          FROM perdure_history
        ) AS steps
        WHERE kind = '{PACKED}' AND (seq - attempts < COALESCE(earlier, -1) OR attempts < 1 OR later IS NULL)
        """,
    ),
    Invariant(
        "an operation has one result per attempt at the run (I1)",
        """
        SELECT run_id, run_attempt, kind, location, COUNT(*) FROM perdure_history
        WHERE kind IN ('step', 'timer')
        GROUP BY run_id, run_attempt, kind, location HAVING COUNT(*) > 1
        """,
    ),
    Invariant(
        "a child has one result for each time that it ended (I1)",
        """
        SELECT h.run_id, h.run_attempt, h.location, COUNT(*) FROM perdure_history h WHERE h.kind = 'child'
        GROUP BY h.run_id, h.run_attempt, h.location
        HAVING COUNT(*) > 1 AND COUNT(*) > (
          SELECT COALESCE(SUM(c.generation), 0) FROM perdure_runs c
          WHERE c.parent_id = h.run_id AND c.parent_location = h.location)
        """,
    ),
    Invariant(
        "no record was written by a former owner of the run (I4)",
        """
        SELECT run_id, seq, token, earlier FROM (
          SELECT run_id, seq, token, LAG(token) OVER (PARTITION BY run_id ORDER BY seq) AS earlier FROM perdure_history
        ) AS steps WHERE token < earlier
        """,
    ),
    Invariant(
        "no record has a token that the run never had (I4)",
        """
        SELECT h.run_id, h.seq, h.token, r.token FROM perdure_history h
        JOIN perdure_runs r ON r.id = h.run_id WHERE h.token > r.token
        """,
    ),
    Invariant(
        "time and attempts in the history never go back, but for an activity that was requeued (I9)",
        """
        SELECT run_id, seq, at, earlier, run_attempt, attempt_before FROM (
          SELECT h.run_id, h.seq, h.at, h.run_attempt, LAG(h.at) OVER (PARTITION BY h.run_id ORDER BY h.seq) AS earlier,
            LAG(h.run_attempt) OVER (PARTITION BY h.run_id ORDER BY h.seq) AS attempt_before,
            CASE WHEN h.kind = 'attempt' AND h.location = r.type AND (r.generation > 1 OR EXISTS (
              SELECT 1 FROM perdure_outputs o WHERE o.run_id = r.id AND o.kind = 'requeue'
            )) THEN 1 ELSE 0 END AS anew
          FROM perdure_history h JOIN perdure_runs r ON r.id = h.run_id
        ) AS steps WHERE (run_attempt < attempt_before AND anew = 0) OR at < earlier
        """,
    ),
    Invariant(
        "each slot of a schedule becomes a run once (I12)",
        """
        SELECT run_id, data, COUNT(*) FROM perdure_events WHERE kind = 'schedule_fired'
        GROUP BY run_id, data HAVING COUNT(*) > 1
        """,
    ),
    Invariant(
        "records, messages, events, outputs, attributes, topics, waiters, lines and permits belong to a run",
        """
        SELECT t.run_id, t.what FROM (
          SELECT run_id, 'history' AS what FROM perdure_history
          UNION SELECT run_id, 'message' FROM perdure_messages
          UNION SELECT run_id, 'event' FROM perdure_events WHERE kind NOT LIKE 'schedule!_%' ESCAPE '!'
            AND kind NOT LIKE 'lock!_%' ESCAPE '!' AND kind NOT LIKE 'watermark!_%' ESCAPE '!'
            AND kind NOT LIKE 'limit!_%' ESCAPE '!' AND kind NOT LIKE 'breaker!_%' ESCAPE '!'
            AND kind NOT LIKE 'token!_%' ESCAPE '!' AND kind NOT LIKE 'worker!_%' ESCAPE '!'
            AND kind NOT LIKE 'deploy!_%' ESCAPE '!' AND kind NOT LIKE 'queue!_%' ESCAPE '!'
            AND kind NOT LIKE 'type!_%' ESCAPE '!'
          UNION SELECT run_id, 'output' FROM perdure_outputs
          UNION SELECT run_id, 'attribute' FROM perdure_attributes
          UNION SELECT run_id, 'topic' FROM perdure_topics
          UNION SELECT run_id, 'waiter' FROM perdure_waiters
          UNION SELECT run_id, 'observer' FROM perdure_observers
          UNION SELECT run_id, 'line' FROM perdure_lines
          UNION SELECT run_id, 'permit' FROM perdure_permits
        ) AS t LEFT JOIN perdure_runs r ON r.id = t.run_id WHERE r.id IS NULL
        """,
    ),
)

STATES = (
    Invariant(
        "a finished run has exactly one outcome, the time of it, and no worker (I3)",
        f"""
        SELECT id, status, output, error, finished_at, worker FROM perdure_runs WHERE status IN {_FINISHED} AND (
          finished_at = 0 OR worker IS NOT NULL OR reason IS NOT NULL OR marked <> 0
          OR (status = 'completed' AND (error IS NOT NULL OR output IS NULL))
          OR (status <> 'completed' AND (error IS NULL OR output IS NOT NULL)))
        """,
    ),
    Invariant(
        "an unfinished run has no outcome (I3)",
        # One part for each status: partial indexes of one status serve no condition on several.
        "UNION ALL".join(
            f"""
        SELECT id, status, output, finished_at FROM perdure_runs
        WHERE status = '{status}' AND (finished_at <> 0 OR output IS NOT NULL)
        """
            for status in _UNFINISHED
        ),
        bounded=True,
    ),
    Invariant(
        "each generation has one final event at the most (I3)",
        f"SELECT id, status, generation, ends, beginnings FROM {_ENDS} WHERE ends > generation - 1 + ended",
    ),
    Invariant(
        "a deleted run is finished, paused or cancelled",
        f"""
        SELECT r.id, r.status, r.deleted_at FROM perdure_runs r
        WHERE r.deleted_at <> 0 AND r.status NOT IN {_FINISHED} AND COALESCE((
          SELECT m.kind FROM perdure_messages m
          WHERE m.run_id = r.id AND m.kind IN ('pause', 'resume', 'cancel') ORDER BY m.seq DESC LIMIT 1
        ), '') NOT IN ('pause', 'cancel')
        """,
    ),
    Invariant(
        "a running run has a known worker or a lease of its own, a nonce and a token (I8)",
        """
        SELECT r.id, r.status, r.worker, r.lease_until, r.nonce, r.token FROM perdure_runs r
        LEFT JOIN perdure_workers w ON w.id = r.worker
        WHERE r.status = 'running' AND ((w.id IS NULL AND r.lease_until = 0) OR r.worker IS NULL OR r.nonce = ''
          OR r.token < 1 OR r.started_at = 0 OR r.seed = '')
        """,
        bounded=True,
    ),
    Invariant(
        "only a running run has a worker, a mark or a lease (I8)",
        """
        SELECT id, status, worker, marked, lease_until FROM perdure_runs
        WHERE status <> 'running' AND (worker IS NOT NULL OR marked <> 0 OR lease_until <> 0)
        """,
    ),
    Invariant(
        "a running run with something unread is marked, and no other (I8)",
        """
        SELECT id, inbox_seq, inbox_read, marked FROM perdure_runs
        WHERE status = 'running' AND marked <> CASE WHEN inbox_seq > inbox_read THEN 1 ELSE 0 END
        """,
        bounded=True,
    ),
    Invariant(
        "a waiting run says what for, and something can end its waiting (I8)",
        f"""
        SELECT id, reason, wake_at FROM perdure_runs WHERE status = 'waiting' AND (
          reason IS NULL OR reason IN {_BLOCKED_REASONS}
          OR (wake_at >= {NEVER} AND reason NOT IN ('message', 'child', 'completion', 'paused', 'limit', 'breaker')))
        """,
        bounded=True,
    ),
    Invariant(
        "no run waits with something unread (I8)",
        """
        SELECT id, reason, inbox_seq, inbox_read FROM perdure_runs
        WHERE status = 'waiting' AND started_at <> 0 AND inbox_seq > inbox_read AND reason <> 'paused'
        """,
        bounded=True,
    ),
    Invariant(
        "a pending run waits for nothing, and a blocked one says why it is blocked (I8, I13)",
        f"""
        SELECT id, status, reason, error FROM perdure_runs WHERE status = 'pending' AND reason IS NOT NULL
        UNION ALL SELECT id, status, reason, error FROM perdure_runs
        WHERE status = 'blocked' AND (error IS NULL OR reason IS NULL OR reason NOT IN {_BLOCKED_REASONS})
        """,
        bounded=True,
    ),
    Invariant(
        "an idempotency key has one run (I6)",
        """
        SELECT MIN(id), idempotency_key, COUNT(*) FROM perdure_runs
        WHERE idempotency_key IS NOT NULL GROUP BY idempotency_key HAVING COUNT(*) > 1
        """,
    ),
    Invariant(
        "a run is created once",
        """
        SELECT run_id, COUNT(*) FROM perdure_events WHERE kind = 'created' GROUP BY run_id HAVING COUNT(*) > 1
        """,
    ),
)

INBOXES = (
    Invariant(
        "an inbox has no holes, all that its counter says but what was trimmed, and all that is unread (I5)",
        f"""
        SELECT r.id, r.inbox_seq, r.inbox_read, COUNT(m.seq), MIN(m.seq), MAX(m.seq) FROM perdure_runs r
        LEFT JOIN perdure_messages m ON m.run_id = r.id GROUP BY r.id, r.inbox_seq, r.inbox_read, r.generation
        HAVING r.inbox_read > r.inbox_seq OR COALESCE(MAX(m.seq), r.inbox_read) <> r.inbox_seq
          OR COUNT(m.seq) <> COALESCE(MAX(m.seq) - MIN(m.seq) + 1, 0)
          OR COALESCE(MIN(m.seq), 0) > r.inbox_read + 1
          OR (COUNT(m.seq) <> r.inbox_seq AND NOT {TRIMMED})
        """,
    ),
    Invariant(
        "what was read is consumed, and nothing else (I5)",
        """
        SELECT m.run_id, m.seq, m.consumed, r.inbox_read FROM perdure_messages m JOIN perdure_runs r ON r.id = m.run_id
        WHERE m.consumed <> CASE WHEN m.seq <= r.inbox_read THEN 1 ELSE 0 END
        """,
    ),
    # The end of another run leaves nothing if it comes after the wait for it was given up, and a question that a
    # validator refuses leaves only its reply.
    Invariant(
        "what was consumed is in the history once, as what it was, unless that was trimmed or it is an activity's (I5)",
        f"""
        SELECT m.run_id, m.seq, m.kind, COUNT(h.seq), MIN(h.kind) FROM perdure_messages m
        JOIN perdure_runs r ON r.id = m.run_id
        LEFT JOIN perdure_history h ON h.run_id = m.run_id AND h.inbox_seq = m.seq
        LEFT JOIN perdure_outputs o ON o.run_id = m.run_id AND o.kind = 'reply' AND o.name = m.message_key
          AND o.failed = 1
        WHERE m.consumed = 1 AND m.kind NOT IN ('pause', 'resume', 'evict', 'wake', 'call')
        GROUP BY m.run_id, m.seq, m.kind, r.id, r.type, r.generation
        HAVING COUNT(h.seq) > 1 OR MIN(h.kind) <> m.kind OR (COUNT(h.seq) = 0 AND COUNT(o.name) = 0 AND NOT {TRIMMED}
          AND r.type NOT IN {_ACTIVITIES} AND MIN(m.message_key) NOT LIKE '{WATCH_KEY}%')
        """,
    ),
    # A later attempt takes in again what an earlier one did, a call that cannot be written fails where it was made, and
    # a run that is opened again finds out how its children ended.
    Invariant(
        "what the history took in had been sent and is consumed (I5)",
        f"""
        SELECT h.run_id, h.seq, h.inbox_seq FROM perdure_history h JOIN perdure_runs r ON r.id = h.run_id
        LEFT JOIN perdure_messages m ON m.run_id = h.run_id AND m.seq = h.inbox_seq AND m.consumed = 1
        WHERE m.seq IS NULL AND (h.inbox_seq > 0 OR (h.kind IN ('message', 'cancel', 'child') AND h.run_attempt = 1
          AND NOT (h.kind = 'child' AND (h.failed = 1 OR r.generation > 1))))
          AND NOT (h.inbox_seq BETWEEN 1 AND r.inbox_read AND {TRIMMED})
        """,
    ),
    Invariant(
        "messages are taken in in the order in which they were sent (I5)",
        """
        SELECT run_id, seq, inbox_seq, earlier FROM (
          SELECT run_id, seq, inbox_seq, LAG(inbox_seq) OVER (PARTITION BY run_id ORDER BY seq) AS earlier
          FROM perdure_history WHERE inbox_seq > 0
        ) AS taken WHERE inbox_seq <= earlier
        """,
    ),
    Invariant(
        "a child has a parent, and knows its place there, unless its parent let go of it to be opened again (I11)",
        """
        SELECT c.id, c.parent_id, c.parent_location FROM perdure_runs c
        LEFT JOIN perdure_runs p ON p.id = c.parent_id
        WHERE c.parent_id IS NOT NULL AND (p.id IS NULL OR (c.parent_location IS NULL AND p.generation = 1))
        """,
    ),
    Invariant(
        "no run waits for the end of a run that is finished, or of one that does not exist (I8)",
        f"""
        SELECT w.run_id, w.target, r.status
        FROM (SELECT run_id, target FROM perdure_waiters UNION SELECT run_id, target FROM perdure_observers) AS w
        LEFT JOIN perdure_runs r ON r.id = w.target
        WHERE r.id IS NULL OR r.status IN {_FINISHED} OR r.watched = 0
        """,
    ),
    Invariant(
        "an unfinished parent has been told of every child that is finished (I8)",
        f"""
        SELECT p.id, p.status, c.id, c.parent_location FROM perdure_runs c JOIN perdure_runs p ON p.id = c.parent_id
        WHERE c.status IN {_FINISHED} AND p.status NOT IN {_FINISHED} AND c.parent_location IS NOT NULL AND NOT EXISTS (
          SELECT 1 FROM perdure_messages m WHERE m.run_id = p.id AND m.kind = 'child' AND m.name = c.parent_location)
          AND NOT {TRIMMED.replace("r.", "p.")}
        """,
    ),
)

OUTPUTS = (
    Invariant(
        "the positions of a stream have no holes, and whatever else a run shows is there once (I5)",
        """
        SELECT run_id, kind, name, COUNT(*), MIN(position), MAX(position) FROM perdure_outputs
        GROUP BY run_id, kind, name
        HAVING (MIN(position) <> 0 AND kind <> 'log') OR COUNT(*) <> MAX(position) - MIN(position) + 1
        OR (kind NOT IN ('stream', 'requeue', 'takeover', 'aside', 'log') AND COUNT(*) <> 1)
        """,
    ),
    Invariant(
        "an output that is not replaced by the next one has a key of its own (I5)",
        """
        SELECT MIN(run_id), output_key, COUNT(*) FROM perdure_outputs WHERE kind NOT IN ('state', 'beat', 'pending')
        GROUP BY run_id, output_key HAVING COUNT(*) > 1 OR output_key IS NULL
        """,
    ),
)

GATES = (
    Invariant(
        "a run that waits for a limit or a breaker stands in a line (I8)",
        """
        SELECT r.id, r.reason FROM perdure_runs r WHERE r.status = 'waiting' AND r.reason IN ('limit', 'breaker')
          AND NOT EXISTS (SELECT 1 FROM perdure_lines l WHERE l.run_id = r.id)
          AND NOT EXISTS (SELECT 1 FROM perdure_successors s WHERE s.run_id = r.id)
        """,
        bounded=True,
    ),
    # One that has ended meanwhile is found out when it is its turn, and others' workers know nothing of lines. Gates of
    # one call are seen by the worker that has claimed its run, which gives it back.
    Invariant(
        "no run waits in line for what is being worked on (I8)",
        """
        SELECT r.id, l.gate, r.status FROM perdure_lines l JOIN perdure_runs r ON r.id = l.run_id
        WHERE l.location = '' AND r.status = 'running' AND r.lease_until = 0
          AND REPLACE(REPLACE(REPLACE(r.options, '"limits"', ''), '"breaker"', ''), '"fair"', '') = r.options
        """,
        bounded=True,
    ),
    Invariant(
        "a gate with a waitlist is looked at some day (I8)",
        f"""
        SELECT l.run_id, l.gate, g.due_at FROM perdure_lines l LEFT JOIN perdure_gates g ON g.name = l.gate
        WHERE g.name IS NULL OR g.due_at >= {NEVER}
        """,
        bounded=True,
    ),
    Invariant(
        "no permit has a token that its run never had (I4)",
        """
        SELECT p.run_id, p.gate, p.token, r.token FROM perdure_permits p
        JOIN perdure_runs r ON r.id = p.run_id WHERE p.token > r.token
        """,
        bounded=True,
    ),
)

INVARIANTS = (*HISTORY, *STATES, TRAIL, *INBOXES, *OUTPUTS, *GATES)

#: Rules that hold on every live database. Of those the audit trail is left out: its level may have changed.
LIVE_INVARIANTS = tuple(one for one in INVARIANTS if one is not TRAIL)
#: Of these the ones whose cost does not grow with the number of finished runs.
BOUNDED_INVARIANTS = tuple(one for one in LIVE_INVARIANTS if one.bounded)
