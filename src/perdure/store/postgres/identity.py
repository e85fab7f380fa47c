"""Identity of a PostgreSQL server: its cluster, its timeline, and the position of its log.

A promoted standby, and a backup that is restored to a point in time, continue on a new timeline. A copy of the server's
files that replaces it has the same timeline and a shorter log. Each new connection reads both. A pooler keeps our
connection while it replaces its own, so that behind a pooler every statement that proves a lease checks the timeline
itself (`fence`), and heartbeats read it.
"""

from __future__ import annotations

import logging

from msgspec import Struct

from perdure.store.postgres.driver import PostgresConnection, ServerError
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
