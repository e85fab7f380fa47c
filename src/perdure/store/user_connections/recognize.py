"""Whose connection it is that somebody has handed in, told by where its class comes from.

No library is imported for that: who hands in its connection has imported it.
"""

from __future__ import annotations

import sqlite3
from typing import Any

from perdure.errors import UsageError
from perdure.store.user_connections.adapter import Wire
from perdure.store.user_connections.drivers import (
    AsyncmyWire,
    AsyncpgWire,
    AsyncPsycopgWire,
    PsycopgWire,
    PyMySqlWire,
    SqliteWire,
)
from perdure.store.user_connections.frameworks import AlchemyWire, AsyncAlchemyWire, DjangoWire

_KNOWN = "a connection of asyncpg, psycopg, sqlite3, PyMySQL or asyncmy, a connection or session of SQLAlchemy, or Django's connection"


def find_wire(connection: Any) -> Wire | None:
    """The connection as a `Wire`; None if it is of no library that is known here."""
    if isinstance(connection, sqlite3.Connection):
        return SqliteWire(connection)
    modules = {f"{each.__module__}.{each.__name__}" for each in type(connection).__mro__}
    libraries = {name.partition(".")[0] for name in modules}
    wire: Wire | None = None
    if "asyncpg" in libraries and hasattr(connection, "is_in_transaction"):
        wire = AsyncpgWire(connection)
    elif "psycopg" in libraries and hasattr(connection, "info"):
        wire = AsyncPsycopgWire(connection) if "psycopg.AsyncConnection" in modules else PsycopgWire(connection)
    elif "pymysql" in libraries and hasattr(connection, "server_status"):
        wire = PyMySqlWire(connection)
    elif "asyncmy" in libraries and hasattr(connection, "get_transaction_status"):
        wire = AsyncmyWire(connection)
    elif "sqlalchemy" in libraries and hasattr(connection, "in_transaction"):
        asynchronous = any(name.startswith("sqlalchemy.ext.asyncio") for name in modules)
        wire = AsyncAlchemyWire(connection) if asynchronous else AlchemyWire(connection)
    elif "django" in libraries and hasattr(connection, "in_atomic_block"):
        wire = DjangoWire(connection)
    return wire


def wire_of(connection: Any) -> Wire:
    """The connection as a `Wire`. Raises `UsageError` if it is none that can be written on."""
    wire = find_wire(connection)
    if wire is None:
        raise UsageError(f"{connection!r} is no connection that Perdure can write on; give {_KNOWN}")
    return wire
