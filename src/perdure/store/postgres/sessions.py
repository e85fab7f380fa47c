"""Sessions carry the name of their process, and those in which a dead one has left a transaction open are ended.

A process that comes to a stand between the preparation of a statement and its execution keeps its rows: the server counts the
session as active and, before PostgreSQL 17, has no limit for that. So whoever finds a worker overdue ends the sessions of its process
that are in a transaction and wait for their client. One that lives loses no more by that than a connection. A session that was
still at work then, and waits for its client since, is found later: its process is remembered for a while, unless it has a worker in
its next life. It takes the same role, and nothing that a role does not have by itself; where that was taken away, the rows stay
with the session.
"""

from __future__ import annotations

import logging
import os
import socket

from perdure.store.postgres.errors import is_refused
from perdure.store.postgres.transaction import PostgresTransaction

_log = logging.getLogger("perdure.store")

#: Bytes that the server keeps of a session's name, and what is kept of a host's.
_LONGEST = 63
_LONGEST_HOST = 32

#: For how long after its last heartbeat a process is looked after that has nobody alive, in microseconds.
LATELY = 3600 * 1_000_000

#: Those that a sweep would declare dead, those that it has and that hold something nevertheless; and, with less haste, those that
#: it has lately.
_GONE = f"""
SELECT host, pid, bool_or(w.status = 'alive' OR its.runs)
FROM perdure_workers w
CROSS JOIN LATERAL (
  SELECT EXISTS (SELECT 1 FROM perdure_runs r WHERE r.status = 'running' AND r.worker = w.id) AS runs
) its
WHERE (w.status = 'alive' AND w.heartbeat_at + w.lease < $1::bigint)
  OR (w.status = 'dead' AND (its.runs OR (w.heartbeat_at > $1::bigint - {LATELY} AND NOT EXISTS (
    SELECT 1 FROM perdure_workers next
    WHERE next.host = w.host AND next.pid = w.pid AND next.status = 'alive' AND next.heartbeat_at + next.lease >= $1::bigint
  ))))
GROUP BY host, pid
"""

#: Milliseconds to wait for the end of a session, so that its locks are gone when the sweep begins, which waits for none.
_ENDS_WITHIN = 100

#: At once, or only what takes longer than anything that lives. A pooler may have added something behind the name.
_END = f"""
SELECT pid, application_name, pg_terminate_backend(pid, {_ENDS_WITHIN})
FROM (
  SELECT *, split_part(substring(application_name FROM 'perdure:.*$'), ' ', 1) AS process FROM pg_stat_activity
) session
WHERE datname = current_database() AND usename = current_user AND pid <> pg_backend_pid()
  AND (process = ANY ($1::text[])
    OR (process = ANY ($2::text[]) AND xact_start < clock_timestamp() - make_interval(secs => $3)))
  AND xact_start IS NOT NULL
  AND (wait_event_type = 'Client' OR state LIKE 'idle in transaction%')
"""


def session_name(given: str = "") -> str:
    """What the sessions of this process are called, behind what the user calls them."""
    name = _process_name(socket.gethostname(), os.getpid())
    given = given.encode("ascii", "replace").decode()[: _LONGEST - 1 - len(name)]
    return f"{given} {name}" if given else name


async def end_abandoned(tx: PostgresTransaction, longest: float) -> None:
    """End what processes without a heartbeat have left open. Not in a transaction, for an error would end that.

    No transaction of a process that lives waits for it for so many seconds.
    """
    gone = {_process_name(host, pid): at_once for host, pid, at_once in await tx.run(_GONE, tx.now)}
    gone.pop(_process_name(socket.gethostname(), os.getpid()), None)
    if not gone:
        return
    now, later = ([name for name, at_once in gone.items() if at_once is wanted] for wanted in (True, False))
    try:
        ended = await tx.run(_END, now, later, longest)
    except Exception as error:
        if not is_refused(error):
            raise
        _log.warning(
            "This role may not call pg_terminate_backend, so a worker that has come to a stand may keep its runs locked until "
            "its process ends: %s",
            error,
        )
        return
    for pid, name, _ in ended:
        _log.warning("session %s of %s was ended: it was in a transaction, and its worker is overdue", pid, name)


def _process_name(host: str, pid: int) -> str:
    label = host.partition(".")[0].encode("ascii", "replace").decode().replace(" ", "_")
    # What tells hosts of a cluster apart is at the end.
    return f"perdure:{pid}@{label[-_LONGEST_HOST:]}"
