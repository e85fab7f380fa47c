"""Sessions on PostgreSQL: the server behind one, and the end of those that a dead process has left in a transaction.

The identity of a server is its cluster, its timeline, and the position of its log. A promoted standby, and a backup
that is restored to a point in time, continue on a new timeline. A copy of the server's files that replaces it has the
same timeline and a shorter log. Each new connection reads both. A pooler keeps our connection while it replaces its
own, so that behind a pooler every statement that proves a lease checks the timeline itself (`fence`), and heartbeats
read it.

Sessions carry the name of their process. A process that stops between preparing a statement and executing it keeps its
row locks: the server counts the session as active and, before PostgreSQL 17, has no timeout for that. So a process that
finds a worker overdue ends those sessions of the worker's process that are in a transaction and wait for their client.
A live process loses no more by that than a connection. A session that was still working then, and waits for its client
later, is found later: its process is remembered for a while, unless a worker with a new id runs in it. Ending a session
requires the same role and no further privilege; where the function was revoked, the rows stay locked until the session
ends.
"""

from __future__ import annotations

import logging
import os
import socket

from msgspec import Struct

from perdure.store.postgres.driver import PostgresConnection, ServerError
from perdure.store.postgres.errors import is_refused
from perdure.store.postgres.transaction import PostgresTransaction
from perdure.store.server.identity import IdentitySnapshot, ServerIdentity

_log = logging.getLogger("perdure.store")

#: The first eight characters of the name of a log file. `pg_control_checkpoint` would lag behind a promotion.
TIMELINE = "substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)"

_WHO = f"""
SELECT pg_backend_pid(), (SELECT system_identifier::text FROM pg_control_system()),
  CASE WHEN pg_is_in_recovery() THEN '' ELSE {TIMELINE} END,
  CASE WHEN pg_is_in_recovery() THEN 0 ELSE (pg_current_wal_flush_lsn() - '0/0'::pg_lsn)::bigint END
"""

#: SQLSTATEs of a server that does not identify itself: it lacks the functions, or the role may not call them.
_UNTOLD = ("0A000", "42501", "42883", "42P01", "55000")


class ServerSession(Struct, frozen=True):
    """The server behind a session."""

    who: ServerIdentity
    #: The timeline; empty: not known.
    timeline: str = ""
    #: True: the session goes through a pooler, which may lead to another server later.
    pooled: bool = False


async def read_identity(connection: PostgresConnection) -> ServerSession:
    """Read the identity of the server behind a connection."""
    try:
        [(pid, cluster, timeline, written)] = await connection.fetch(_WHO)
    except ServerError as error:
        if getattr(error, "sqlstate", "") not in _UNTOLD:
            raise
        _log.debug("the server does not identify itself: %s", error)
        return ServerSession(ServerIdentity(None))
    pooled = pid != connection.get_server_pid()
    if not timeline:
        return ServerSession(ServerIdentity(None), pooled=pooled)
    return ServerSession(ServerIdentity(f"{cluster}/{timeline}", {"log": written}), timeline, pooled)


def timeline_of(name: str) -> str:
    """Return the timeline in a server's name."""
    return name.partition("/")[2]


def on_timeline(name: str | None, timeline: str) -> ServerIdentity:
    """Return the identity of the same cluster on another timeline."""
    return ServerIdentity(f"{(name or '').partition('/')[0]}/{timeline}")


#: Stands for no known log position.
NOTHING_KNOWN = IdentitySnapshot(-1, {})


def fence(timeline: str) -> str:
    """Return an SQL condition that holds on one timeline only, evaluated once per statement."""
    return f" AND (SELECT {TIMELINE}) = '{timeline}'"


#: Maximum length of a session name on the server, and of the host name in it.
_LONGEST = 63
_LONGEST_HOST = 32

#: Microseconds after its last heartbeat for which the sessions of a process without a live worker are checked.
LATELY = 3600 * 1_000_000

#: Processes of workers that a sweep would declare dead, or has declared dead while they still hold runs; and, less
#: urgent, processes of workers that were declared dead lately.
_GONE = f"""
SELECT host, pid, bool_or(w.status = 'alive' OR its.runs)
FROM perdure_workers w
CROSS JOIN LATERAL (
  SELECT EXISTS (SELECT 1 FROM perdure_runs r WHERE r.status = 'running' AND r.worker = w.id) AS runs
) its
WHERE (w.status = 'alive' AND w.heartbeat_at + w.lease < $1::bigint)
  OR (w.status = 'dead' AND (its.runs OR (w.heartbeat_at > $1::bigint - {LATELY} AND NOT EXISTS (
    SELECT 1 FROM perdure_workers next
    WHERE next.host = w.host AND next.pid = w.pid AND next.status = 'alive'
      AND next.heartbeat_at + next.lease >= $1::bigint
  ))))
GROUP BY host, pid
"""

#: Milliseconds to wait for the end of a session, so that its locks are gone when the sweep begins, which waits for no
#: lock.
_ENDS_WITHIN = 100

#: Sessions to end at once, or only if their transaction is older than any of a live process. A pooler may append to
#: the name.
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


def session_name(given: str = "", *, announces: bool = False) -> str:
    """Return the name of the sessions of this process, after the name that the user has given.

    `announces`: the process announces what it commits in the session, so that no trigger has to.
    """
    name = ("+" if announces else "") + _process_name(socket.gethostname(), os.getpid())
    given = given.encode("ascii", "replace").decode()[: _LONGEST - 1 - len(name)]
    return f"{given} {name}" if given else name


async def end_abandoned(tx: PostgresTransaction, longest: float) -> None:
    """End sessions in which processes without a heartbeat have left a transaction open.

    No transaction of a live process waits for its client for `longest` seconds. Must not run within a transaction,
    which an error would end.
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
            "this role may not call pg_terminate_backend, so a worker that has stopped may keep its runs locked until "
            "its process ends: %s",
            error,
        )
        return
    for pid, name, _ in ended:
        _log.warning("session %s of %s was ended: it had a transaction open, and its worker is overdue", pid, name)


def _process_name(host: str, pid: int) -> str:
    label = host.partition(".")[0].encode("ascii", "replace").decode().replace(" ", "_")
    # Host names of a cluster differ at the end.
    return f"perdure:{pid}@{label[-_LONGEST_HOST:]}"
