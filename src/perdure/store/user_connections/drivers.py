"""Adapters for connections of database drivers: asyncpg, psycopg, sqlite3, PyMySQL and asyncmy.

A driver is imported only after the caller has passed one of its connections.
"""

from __future__ import annotations

import sqlite3
from importlib import import_module
from typing import Any

from perdure.errors import UsageError
from perdure.store.sql.dialect import Row

CLOSED = "the connection is closed"
FAILED = "its transaction has failed and can only be rolled back"
NO_TRANSACTION = "it commits every statement by itself and no transaction is open; begin one"

_IDLE, _FAILED = 0, 3
_IN_TRANSACTION = 1


class AsyncpgAdapter:
    """Adapter for a connection of asyncpg, or of its pool."""

    library = "asyncpg"
    database = "postgres"
    parameter_style = "numeric_dollar"
    is_async = True

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._transaction: Any = None

    async def join(self) -> None:
        """Check that writes will belong to a transaction of the caller's."""
        if self._connection.is_closed():
            raise UsageError(CLOSED)
        if not self._connection.is_in_transaction():
            raise UsageError(NO_TRANSACTION)

    async def execute(self, text: str, values: Any) -> int:
        """Run one statement; return how many rows it changed."""
        status: str = await self._connection.execute(text, *values)
        return int(status.rpartition(" ")[2]) if status[-1:].isdigit() else 0

    async def fetch(self, text: str, values: Any) -> list[Row]:
        """Run a query; return its rows as tuples."""
        return [tuple(row) for row in await self._connection.fetch(text, *values)]

    async def begin(self) -> None:
        """Begin a transaction through the driver, which refuses to nest into one that it has not begun."""
        self._transaction = self._connection.transaction()
        await self._transaction.start()

    async def flush(self) -> None:
        """Do nothing: the library writes every statement at once."""

    async def commit(self) -> None:
        """Commit the transaction that `begin` opened."""
        await self._transaction.commit()

    async def rollback(self) -> None:
        """Roll back the transaction that `begin` opened."""
        await self._transaction.rollback()

    async def close(self) -> None:
        """Close the connection."""
        await self._connection.close()


class PsycopgAdapter:
    """Adapter for a synchronous connection of psycopg 3."""

    library = "psycopg"
    database = "postgres"
    parameter_style = "pyformat"
    is_async = False

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def join(self) -> None:
        """Check that writes will belong to a transaction of the caller's.

        Without autocommit, the first statement begins one.
        """
        if self._connection.closed:
            raise UsageError(CLOSED)
        status = self._connection.info.transaction_status
        if status == _FAILED:
            raise UsageError(FAILED)
        if status == _IDLE and self._connection.autocommit:
            raise UsageError(NO_TRANSACTION)

    def _cursor(self) -> Any:
        # `connection.cursor()` would use the cursor and row factories that the caller has set.
        psycopg, rows = import_module("psycopg"), import_module("psycopg.rows")
        return psycopg.Cursor(self._connection, row_factory=rows.tuple_row)

    async def execute(self, text: str, values: Any) -> int:
        """Run one statement; return how many rows it changed."""
        with self._cursor() as cursor:
            count: int = cursor.execute(text, values).rowcount
            return count

    async def fetch(self, text: str, values: Any) -> list[Row]:
        """Run a query; return its rows as tuples."""
        with self._cursor() as cursor:
            rows: list[Row] = cursor.execute(text, values).fetchall()
            return rows

    async def begin(self) -> None:
        """Begin a transaction."""
        if self._connection.info.transaction_status != _IDLE:
            raise UsageError("a transaction is open already")
        if self._connection.autocommit:
            await self.execute("BEGIN", {})

    async def flush(self) -> None:
        """Do nothing: the library writes every statement at once."""

    async def commit(self) -> None:
        """Commit the transaction that `begin` opened."""
        self._connection.commit()

    async def rollback(self) -> None:
        """Roll back the transaction that `begin` opened."""
        self._connection.rollback()

    async def close(self) -> None:
        """Close the connection."""
        self._connection.close()


class AsyncPsycopgAdapter(PsycopgAdapter):
    """Adapter for an asynchronous connection of psycopg 3."""

    is_async = True

    def _cursor(self) -> Any:
        psycopg, rows = import_module("psycopg"), import_module("psycopg.rows")
        return psycopg.AsyncCursor(self._connection, row_factory=rows.tuple_row)

    async def execute(self, text: str, values: Any) -> int:
        """Run one statement; return how many rows it changed."""
        async with self._cursor() as cursor:
            await cursor.execute(text, values)
            count: int = cursor.rowcount
            return count

    async def fetch(self, text: str, values: Any) -> list[Row]:
        """Run a query; return its rows as tuples."""
        async with self._cursor() as cursor:
            await cursor.execute(text, values)
            rows: list[Row] = await cursor.fetchall()
            return rows

    async def commit(self) -> None:
        """Commit the transaction that `begin` opened."""
        await self._connection.commit()

    async def rollback(self) -> None:
        """Roll back the transaction that `begin` opened."""
        await self._connection.rollback()

    async def close(self) -> None:
        """Close the connection."""
        await self._connection.close()


def needs_begin(connection: Any) -> bool:
    """Tell whether a connection to SQLite needs a BEGIN before it is written to. Raises `UsageError`."""
    try:
        if connection.in_transaction:
            return False
    except (sqlite3.ProgrammingError, ValueError) as error:
        raise UsageError(CLOSED) from error
    # The driver would begin one itself, but only before the first write, which is after our first read.
    if connection.isolation_level is None or getattr(connection, "autocommit", None) is True:
        raise UsageError(NO_TRANSACTION)
    return True


class SqliteAdapter:
    """Adapter for a connection of the standard library's sqlite3."""

    library = "sqlite3"
    database = "sqlite"
    parameter_style = "named"
    is_async = False

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    async def join(self) -> None:
        """Check that writes will belong to a transaction of the caller's."""
        if needs_begin(self._connection):
            self._connection.execute("BEGIN IMMEDIATE")

    def _run(self, text: str, values: Any) -> sqlite3.Cursor:
        cursor = self._connection.cursor()
        cursor.row_factory = None
        return cursor.execute(text, values)

    async def execute(self, text: str, values: Any) -> int:
        """Run one statement; return how many rows it changed."""
        return self._run(text, values).rowcount

    async def fetch(self, text: str, values: Any) -> list[Row]:
        """Run a query; return its rows as tuples."""
        return self._run(text, values).fetchall()

    async def begin(self) -> None:
        """Begin a transaction as a writer: SQLite may refuse to turn a reader into one later."""
        if not self._connection.in_transaction:
            self._connection.execute("BEGIN IMMEDIATE")

    async def flush(self) -> None:
        """Do nothing: the library writes every statement at once."""

    async def commit(self) -> None:
        """Commit the transaction that `begin` opened."""
        if getattr(self._connection, "autocommit", None) is False:
            self._connection.commit()
        else:
            self._connection.execute("COMMIT")

    async def rollback(self) -> None:
        """Roll back the transaction that `begin` opened."""
        if self._connection.in_transaction:
            self._connection.rollback()

    async def close(self) -> None:
        """Close the connection."""
        self._connection.close()


class PyMySqlAdapter:
    """Adapter for a connection of PyMySQL."""

    library = "PyMySQL"
    database = "mysql"
    parameter_style = "pyformat"
    is_async = False

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def join(self) -> None:
        """Check that writes will belong to a transaction of the caller's.

        Without autocommit, the first statement begins one.
        """
        if not self._connection.open:
            raise UsageError(CLOSED)
        if self._connection.get_autocommit() and not self._connection.server_status & _IN_TRANSACTION:
            raise UsageError(NO_TRANSACTION)

    def _cursor(self) -> Any:
        return self._connection.cursor(import_module("pymysql.cursors").Cursor)

    async def execute(self, text: str, values: Any) -> int:
        """Run one statement; return how many rows it changed."""
        with self._cursor() as cursor:
            count: int = cursor.execute(text, values)
            return count

    async def fetch(self, text: str, values: Any) -> list[Row]:
        """Run a query; return its rows as tuples."""
        with self._cursor() as cursor:
            cursor.execute(text, values)
            return list(cursor.fetchall())

    async def begin(self) -> None:
        """Begin a transaction."""
        self._connection.begin()

    async def flush(self) -> None:
        """Do nothing: the library writes every statement at once."""

    async def commit(self) -> None:
        """Commit the transaction that `begin` opened."""
        self._connection.commit()

    async def rollback(self) -> None:
        """Roll back the transaction that `begin` opened."""
        self._connection.rollback()

    async def close(self) -> None:
        """Close the connection."""
        self._connection.close()


class AsyncmyAdapter(PyMySqlAdapter):
    """Adapter for a connection of asyncmy."""

    library = "asyncmy"
    is_async = True

    async def join(self) -> None:
        """Check that writes will belong to a transaction of the caller's."""
        if not self._connection.connected:
            raise UsageError(CLOSED)
        if self._connection.get_autocommit() and not self._connection.get_transaction_status():
            raise UsageError(NO_TRANSACTION)

    def _cursor(self) -> Any:
        return self._connection.cursor(import_module("asyncmy.cursors").Cursor)

    async def execute(self, text: str, values: Any) -> int:
        """Run one statement; return how many rows it changed."""
        async with self._cursor() as cursor:
            count: int = await cursor.execute(text, values)
            return count

    async def fetch(self, text: str, values: Any) -> list[Row]:
        """Run a query; return its rows as tuples."""
        async with self._cursor() as cursor:
            await cursor.execute(text, values)
            return list(await cursor.fetchall())

    async def begin(self) -> None:
        """Begin a transaction."""
        await self._connection.begin()

    async def commit(self) -> None:
        """Commit the transaction that `begin` opened."""
        await self._connection.commit()

    async def rollback(self) -> None:
        """Roll back the transaction that `begin` opened."""
        await self._connection.rollback()

    async def close(self) -> None:
        """Close the connection."""
        await self._connection.ensure_closed()
