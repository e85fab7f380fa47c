"""A connection of somebody else's library, as the little that is asked of it."""

from __future__ import annotations

import inspect
import sqlite3
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any, Protocol

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
    """One connection. The coroutines of a library that is not asynchronous never suspend."""

    #: What the library is called in messages.
    library: str
    #: The name of the dialect that is spoken at the other end.
    database: str
    #: How it wants parameters: a style that `render` knows.
    parameter_style: str
    #: Whether it belongs to an event loop.
    is_async: bool

    async def join(self) -> None:
        """Make sure that what is written now waits for the caller's commit. Raises `UsageError`."""

    async def execute(self, text: str, values: Any) -> int:
        """Run one statement; how many rows it changed."""

    async def fetch(self, text: str, values: Any) -> list[Row]:
        """Run a query; its rows, whatever the caller wants rows to be."""

    async def begin(self) -> None:
        """Open a transaction on a connection that has none. Raises `UsageError`."""

    async def flush(self) -> None:
        """Have everything written that the library has put off."""

    async def commit(self) -> None:
        """Commit what `begin` opened."""

    async def rollback(self) -> None:
        """Roll back what `begin` opened."""

    async def close(self) -> None:
        """Let go of a connection that no context manager closes."""


_KNOWN = "a connection of asyncpg, psycopg, sqlite3, PyMySQL or asyncmy, a connection or session of SQLAlchemy, or Django's connection"


def find_adapter(connection: Any) -> ConnectionAdapter | None:
    """The connection as a `ConnectionAdapter`; None if it is of no library that is known here."""
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
    """The connection as a `ConnectionAdapter`. Raises `UsageError` if it is none that can be written on."""
    adapter = find_adapter(connection)
    if adapter is None:
        raise UsageError(f"{connection!r} is no connection that Perdure can write on; give {_KNOWN}")
    return adapter


@asynccontextmanager
async def open_connection(using: Callable[[], Any]) -> AsyncGenerator[tuple[Any, ConnectionAdapter]]:
    """What `using` gives: a connection, something to be awaited for one, or a context manager around one."""
    given = using()
    # A connection of sqlite3 is a context manager as well, but one that leaves it open.
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
