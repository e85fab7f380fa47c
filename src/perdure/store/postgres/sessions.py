"""Sessions carry the name of their process, and those in which a dead one has left a transaction open are ended.

A process that comes to a stand between the preparation of a statement and its execution keeps its rows: the server counts the
session as active and, before PostgreSQL 17, has no limit for that. So whoever finds a worker overdue ends the sessions of its process
that are in a transaction and wait for their client. One that lives loses no more by that than a connection. It takes the
same role, and nothing that a role does not have by itself; where that was taken away, the rows stay with the session.
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

#: Those that a sweep would declare dead, and those that it has and that hold something nevertheless.
_GONE = """
SELECT DISTINCT host, pid
FROM perdure_workers w
WHERE (status = 'alive' AND heartbeat_at + lease < $1::bigint)
  OR (status = 'dead' AND EXISTS (SELECT 1 FROM perdure_runs r WHERE r.status = 'running' AND r.worker = w.id))
"""

#: A pooler may have added something behind the name.
_END = """
SELECT pid, application_name, pg_terminate_backend(pid)
FROM pg_stat_activity
WHERE datname = current_database() AND usename = current_user AND pid <> pg_backend_pid()
  AND split_part(substring(application_name FROM 'perdure:.*$'), ' ', 1) = ANY ($1::text[])
  AND xact_start IS NOT NULL
  AND (wait_event_type = 'Client' OR state LIKE 'idle in transaction%')
"""


def session_name(given: str = "") -> str:
    """What the sessions of this process are called, behind what the user calls them."""
    name = _process_name(socket.gethostname(), os.getpid())
    given = given.encode("ascii", "replace").decode()[: _LONGEST - 1 - len(name)]
    return f"{given} {name}" if given else name


async def end_abandoned(tx: PostgresTransaction) -> None:
    """End what processes without a heartbeat have left open. Not in a transaction, for an error would end that."""
    gone = {_process_name(host, pid) for host, pid in await tx.run(_GONE, tx.now)}
    gone.discard(_process_name(socket.gethostname(), os.getpid()))
    if not gone:
        return
    try:
        ended = await tx.run(_END, sorted(gone))
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
