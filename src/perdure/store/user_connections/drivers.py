"""Connections of database drivers: asyncpg, psycopg, sqlite3, PyMySQL and asyncmy.

A driver is only ever imported here when the caller has handed in one of its connections.
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
    """A connection of asyncpg, or one that its pool has lent."""

    library = "asyncpg"
    database = "postgres"
    parameter_style = "numeric_dollar"
    is_async = True

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._transaction: Any = None

    async def join(self) -> None:
        """See `Wire`."""
        if self._connection.is_closed():
            raise UsageError(CLOSED)
        if not self._connection.is_in_transaction():
            raise UsageError(NO_TRANSACTION)

    async def execute(self, text: str, values: Any) -> int:
        """See `Wire`."""
        status: str = await self._connection.execute(text, *values)
        return int(status.rpartition(" ")[2]) if status[-1:].isdigit() else 0

    async def fetch(self, text: str, values: Any) -> list[Row]:
        """See `Wire`."""
        return [tuple(row) for row in await self._connection.fetch(text, *values)]

    async def begin(self) -> None:
        """See `Wire`. By the driver's own means: it refuses to nest into a transaction that it has not begun."""
        self._transaction = self._connection.transaction()
        await self._transaction.start()

    async def flush(self) -> None:
        """See `Wire`."""

    async def commit(self) -> None:
        """See `Wire`."""
        await self._transaction.commit()

    async def rollback(self) -> None:
        """See `Wire`."""
        await self._transaction.rollback()

    async def close(self) -> None:
        """See `Wire`."""
        await self._connection.close()


class PsycopgAdapter:
    """A connection of psycopg 3."""

    library = "psycopg"
    database = "postgres"
    parameter_style = "pyformat"
    is_async = False

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def join(self) -> None:
        """See `Wire`. Without autocommit, the first statement begins a transaction."""
        if self._connection.closed:
            raise UsageError(CLOSED)
        status = self._connection.info.transaction_status
        if status == _FAILED:
            raise UsageError(FAILED)
        if status == _IDLE and self._connection.autocommit:
            raise UsageError(NO_TRANSACTION)

    def _cursor(self) -> Any:
        # Not by way of the connection, whose cursors and rows may be of the caller's own kind.
        psycopg, rows = import_module("psycopg"), import_module("psycopg.rows")
        return psycopg.Cursor(self._connection, row_factory=rows.tuple_row)

    async def execute(self, text: str, values: Any) -> int:
        """See `Wire`."""
        with self._cursor() as cursor:
            count: int = cursor.execute(text, values).rowcount
            return count

    async def fetch(self, text: str, values: Any) -> list[Row]:
        """See `Wire`."""
        with self._cursor() as cursor:
            rows: list[Row] = cursor.execute(text, values).fetchall()
            return rows

    async def begin(self) -> None:
        """See `Wire`."""
        if self._connection.info.transaction_status != _IDLE:
            raise UsageError("a transaction is open already")
        if self._connection.autocommit:
            await self.execute("BEGIN", {})

    async def flush(self) -> None:
        """See `Wire`."""

    async def commit(self) -> None:
        """See `Wire`."""
        self._connection.commit()

    async def rollback(self) -> None:
        """See `Wire`."""
        self._connection.rollback()

    async def close(self) -> None:
        """See `Wire`."""
        self._connection.close()


class AsyncPsycopgAdapter(PsycopgAdapter):
    """An asynchronous connection of psycopg 3."""

    is_async = True

    def _cursor(self) -> Any:
        psycopg, rows = import_module("psycopg"), import_module("psycopg.rows")
        return psycopg.AsyncCursor(self._connection, row_factory=rows.tuple_row)

    async def execute(self, text: str, values: Any) -> int:
        """See `Wire`."""
        async with self._cursor() as cursor:
            await cursor.execute(text, values)
            count: int = cursor.rowcount
            return count

    async def fetch(self, text: str, values: Any) -> list[Row]:
        """See `Wire`."""
        async with self._cursor() as cursor:
            await cursor.execute(text, values)
            rows: list[Row] = await cursor.fetchall()
            return rows

    async def commit(self) -> None:
        """See `Wire`."""
        await self._connection.commit()

    async def rollback(self) -> None:
        """See `Wire`."""
        await self._connection.rollback()

    async def close(self) -> None:
        """See `Wire`."""
        await self._connection.close()


def needs_begin(connection: Any) -> bool:
    """Whether a transaction has to be begun on a connection to SQLite before it is written to. Raises `UsageError`."""
    try:
        if connection.in_transaction:
            return False
    except (sqlite3.ProgrammingError, ValueError) as error:
        raise UsageError(CLOSED) from error
    # It would begin one itself, but only for the first statement that writes, and by then it has looked.
    if connection.isolation_level is None or getattr(connection, "autocommit", None) is True:
        raise UsageError(NO_TRANSACTION)
    return True


class SqliteAdapter:
    """A connection of the standard library's sqlite3."""

    library = "sqlite3"
    database = "sqlite"
    parameter_style = "named"
    is_async = False

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    async def join(self) -> None:
        """See `Wire`."""
        if needs_begin(self._connection):
            self._connection.execute("BEGIN IMMEDIATE")

    def _run(self, text: str, values: Any) -> sqlite3.Cursor:
        cursor = self._connection.cursor()
        cursor.row_factory = None
        return cursor.execute(text, values)

    async def execute(self, text: str, values: Any) -> int:
        """See `Wire`."""
        return self._run(text, values).rowcount

    async def fetch(self, text: str, values: Any) -> list[Row]:
        """See `Wire`."""
        return self._run(text, values).fetchall()

    async def begin(self) -> None:
        """See `Wire`. At once as a writer: one that has only read may find that it is too late to write."""
        if not self._connection.in_transaction:
            self._connection.execute("BEGIN IMMEDIATE")

    async def flush(self) -> None:
        """See `Wire`."""

    async def commit(self) -> None:
        """See `Wire`."""
        if getattr(self._connection, "autocommit", None) is False:
            self._connection.commit()
        else:
            self._connection.execute("COMMIT")

    async def rollback(self) -> None:
        """See `Wire`."""
        if self._connection.in_transaction:
            self._connection.rollback()

    async def close(self) -> None:
        """See `Wire`."""
        self._connection.close()


class PyMySqlAdapter:
    """A connection of PyMySQL."""

    library = "PyMySQL"
    database = "mysql"
    parameter_style = "pyformat"
    is_async = False

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def join(self) -> None:
        """See `Wire`. Without autocommit, the first statement begins a transaction."""
        if not self._connection.open:
            raise UsageError(CLOSED)
        if self._connection.get_autocommit() and not self._connection.server_status & _IN_TRANSACTION:
            raise UsageError(NO_TRANSACTION)

    def _cursor(self) -> Any:
        return self._connection.cursor(import_module("pymysql.cursors").Cursor)

    async def execute(self, text: str, values: Any) -> int:
        """See `Wire`."""
        with self._cursor() as cursor:
            count: int = cursor.execute(text, values)
            return count

    async def fetch(self, text: str, values: Any) -> list[Row]:
        """See `Wire`."""
        with self._cursor() as cursor:
            cursor.execute(text, values)
            return list(cursor.fetchall())

    async def begin(self) -> None:
        """See `Wire`."""
        self._connection.begin()

    async def flush(self) -> None:
        """See `Wire`."""

    async def commit(self) -> None:
        """See `Wire`."""
        self._connection.commit()

    async def rollback(self) -> None:
        """See `Wire`."""
        self._connection.rollback()

    async def close(self) -> None:
        """See `Wire`."""
        self._connection.close()


class AsyncmyAdapter(PyMySqlAdapter):
    """A connection of asyncmy."""

    library = "asyncmy"
    is_async = True

    async def join(self) -> None:
        """See `Wire`."""
        if not self._connection.connected:
            raise UsageError(CLOSED)
        if self._connection.get_autocommit() and not self._connection.get_transaction_status():
            raise UsageError(NO_TRANSACTION)

    def _cursor(self) -> Any:
        return self._connection.cursor(import_module("asyncmy.cursors").Cursor)

    async def execute(self, text: str, values: Any) -> int:
        """See `Wire`."""
        async with self._cursor() as cursor:
            count: int = await cursor.execute(text, values)
            return count

    async def fetch(self, text: str, values: Any) -> list[Row]:
        """See `Wire`."""
        async with self._cursor() as cursor:
            await cursor.execute(text, values)
            return list(await cursor.fetchall())

    async def begin(self) -> None:
        """See `Wire`."""
        await self._connection.begin()

    async def commit(self) -> None:
        """See `Wire`."""
        await self._connection.commit()

    async def rollback(self) -> None:
        """See `Wire`."""
        await self._connection.rollback()

    async def close(self) -> None:
        """See `Wire`."""
        await self._connection.ensure_closed()
