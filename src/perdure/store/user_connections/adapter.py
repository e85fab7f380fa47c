"""Connections of the user's own database library behind one interface.

The library is recognised by the modules that the connection's class comes from. No library is imported for that: the
caller has imported it already.
"""

from __future__ import annotations

import inspect
import sqlite3
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any, Protocol

from perdure.core.printed_text import brief
from perdure.errors import UsageError
from perdure.store.sql.dialect import Row
from perdure.store.user_connections.drivers import (
    AsyncmyAdapter,
    AsyncpgAdapter,
    AsyncPsycopgAdapter,
    PsycopgAdapter,
    PyMySqlAdapter,
    SqliteAdapter,
)
from perdure.store.user_connections.frameworks import AsyncSqlAlchemyAdapter, DjangoAdapter, SqlAlchemyAdapter


class ConnectionAdapter(Protocol):
    """One connection of the user's. The coroutines of a synchronous library never suspend."""

    #: The library's name in messages.
    library: str
    #: The name of the `Dialect` of the database that it is connected to.
    database: str
    #: The parameter style that the library takes, one of those that `transaction.render` knows.
    parameter_style: str
    #: True: the library is asynchronous, and the connection belongs to an event loop.
    is_async: bool

    async def join(self) -> None:
        """Make sure that what is written now waits for the caller's commit. Raises `UsageError` if it would not."""

    async def execute(self, text: str, values: Any) -> int:
        """Run one statement; return how many rows it changed."""

    async def fetch(self, text: str, values: Any) -> list[Row]:
        """Run a query; return its rows as tuples, whatever row factory the caller has set."""

    async def begin(self) -> None:
        """Open a transaction. Raises `UsageError` if one is open already."""

    async def flush(self) -> None:
        """Write what the library has put off, such as the objects of a session."""

    async def commit(self) -> None:
        """Commit the transaction that `begin` opened."""

    async def rollback(self) -> None:
        """Roll back the transaction that `begin` opened."""

    async def close(self) -> None:
        """Close a connection that no context manager closes."""


_KNOWN = (
    "a connection of asyncpg, psycopg, sqlite3, PyMySQL or asyncmy, a connection or session of SQLAlchemy, or Django's "
    "connection"
)


def find_adapter(connection: Any) -> ConnectionAdapter | None:
    """Return the adapter for a connection; None if its library is not known."""
    if isinstance(connection, sqlite3.Connection):
        return SqliteAdapter(connection)
    modules = {f"{each.__module__}.{each.__name__}" for each in type(connection).__mro__}
    libraries = {name.partition(".")[0] for name in modules}
    adapter: ConnectionAdapter | None = None
    if "asyncpg" in libraries and hasattr(connection, "is_in_transaction"):
        adapter = AsyncpgAdapter(connection)
    elif "psycopg" in libraries and hasattr(connection, "info"):
        adapter = (
            AsyncPsycopgAdapter(connection) if "psycopg.AsyncConnection" in modules else PsycopgAdapter(connection)
        )
    elif "pymysql" in libraries and hasattr(connection, "server_status"):
        adapter = PyMySqlAdapter(connection)
    elif "asyncmy" in libraries and hasattr(connection, "get_transaction_status"):
        adapter = AsyncmyAdapter(connection)
    elif "sqlalchemy" in libraries and hasattr(connection, "in_transaction"):
        asynchronous = any(name.startswith("sqlalchemy.ext.asyncio") for name in modules)
        adapter = AsyncSqlAlchemyAdapter(connection) if asynchronous else SqlAlchemyAdapter(connection)
    elif "django" in libraries and hasattr(connection, "in_atomic_block"):
        adapter = DjangoAdapter(connection)
    return adapter


def adapter_for(connection: Any) -> ConnectionAdapter:
    """Return the adapter for a connection. Raises `UsageError` if its library is not known."""
    adapter = find_adapter(connection)
    if adapter is None:
        raise UsageError(f"{brief(connection)} is no connection that Perdure can write on; pass {_KNOWN}")
    return adapter


@asynccontextmanager
async def open_connection(using: Callable[[], Any]) -> AsyncGenerator[tuple[Any, ConnectionAdapter]]:
    """Open the connection that `using` returns, awaits or enters, and close it at the end."""
    given = using()
    # A connection of sqlite3 is a context manager that ends a transaction and does not close it.
    plain = isinstance(given, sqlite3.Connection)
    if hasattr(given, "__aenter__"):
        async with given as connection:
            yield connection, adapter_for(connection)
    elif hasattr(given, "__enter__") and not plain:
        with given as connection:
            yield connection, adapter_for(connection)
    else:
        connection = await given if inspect.isawaitable(given) else given
        adapter = adapter_for(connection)
        try:
            yield connection, adapter
        finally:
            await adapter.close()
