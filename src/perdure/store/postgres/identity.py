"""Identity of a PostgreSQL server: its cluster, its timeline, and how far it has written.

A standby that is promoted, and a backup that is restored to a point in time, go on with another timeline than the server before. A
copy of its files that is put in its place has the same timeline and a shorter log. Both are read with each new connection. A
pooler keeps our connection while it changes its own, so that behind one, statements that prove a lease check the timeline
themselves (`fence`), and heartbeats read it.
"""

from __future__ import annotations

import logging

from msgspec import Struct

from perdure.store.postgres.driver import PostgresConnection, ServerError
from perdure.store.server.identity import IdentitySnapshot, ServerIdentity

_log = logging.getLogger("perdure.store")

#: The first eight letters of the name of a file of the write-ahead log. `pg_control_checkpoint` lags behind a promotion.
TIMELINE = "substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)"

_WHO = f"""
SELECT pg_backend_pid(), (SELECT system_identifier::text FROM pg_control_system()),
  CASE WHEN pg_is_in_recovery() THEN '' ELSE {TIMELINE} END,
  CASE WHEN pg_is_in_recovery() THEN 0 ELSE (pg_current_wal_flush_lsn() - '0/0'::pg_lsn)::bigint END
"""

#: Of a server that does not tell: functions that it lacks or that the role may not call.
_UNTOLD = ("0A000", "42501", "42883", "42P01", "55000")


class ServerSession(Struct, frozen=True):
    """What a session says of its server."""

    who: ServerIdentity
    #: Empty: not known.
    timeline: str = ""
    #: A pooler stands in between, and may lead to another server later.
    pooled: bool = False


async def who_is(connection: PostgresConnection) -> ServerSession:
    """Ask the server behind a connection who it is."""
    try:
        [(pid, cluster, timeline, written)] = await connection.fetch(_WHO)
    except ServerError as error:
        if getattr(error, "sqlstate", "") not in _UNTOLD:
            raise
        _log.debug("the server does not say who it is: %s", error)
        return ServerSession(ServerIdentity(None))
    pooled = pid != connection.get_server_pid()
    if not timeline:
        return ServerSession(ServerIdentity(None), pooled=pooled)
    return ServerSession(ServerIdentity(f"{cluster}/{timeline}", {"log": written}), timeline, pooled)


def timeline_of(name: str) -> str:
    """The timeline in a server's name."""
    return name.partition("/")[2]


def on_timeline(name: str | None, timeline: str) -> ServerIdentity:
    """The same cluster on another timeline."""
    return ServerIdentity(f"{(name or '').partition('/')[0]}/{timeline}")


#: Of what is known without asking for positions.
NOTHING_KNOWN = IdentitySnapshot(-1, {})


def fence(timeline: str) -> str:
    """A condition that holds on that timeline only; the planner sees that it is the same for all rows."""
    return f" AND (SELECT {TIMELINE}) = '{timeline}'"
