"""Adapters for connections and sessions of SQLAlchemy, and for Django's connection.

Statements go through the library itself, in the parameter style of its driver, so that the library begins transactions,
logs and measures as for its own statements.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from perdure.errors import UsageError
from perdure.store.sql.dialect import Row
from perdure.store.user_connections.drivers import CLOSED, FAILED, NO_TRANSACTION, needs_begin

_DATABASES = {"sqlite": "sqlite", "postgresql": "postgres", "mysql": "mysql", "mariadb": "mysql"}
_BEGUN = "a transaction is open already; give a connection that has none, such as `engine.connect` of SQLAlchemy gives"


def _named(database: str) -> str:
    return _DATABASES.get(database, database)


class SqlAlchemyAdapter:
    """Adapter for a `Connection` or a `Session` of SQLAlchemy."""

    library = "SQLAlchemy"
    is_async = False

    def __init__(self, connection: Any) -> None:
        self._given = connection
        self._is_session = hasattr(connection, "flush")
        self._connection: Any = None if self._is_session else connection
        bind = connection.get_bind() if self._is_session else connection
        self.database = _named(bind.dialect.name)
        self.parameter_style: str = bind.dialect.paramstyle

    async def join(self) -> None:
        """Check that writes will belong to a transaction; outside of autocommit, SQLAlchemy begins one itself."""
        connection = await self._checked()
        if self.database == "sqlite":
            # Its driver begins before the first write only, which is after our first read.
            if needs_begin(await self._driver(connection)):
                await self.execute("BEGIN IMMEDIATE", ())
        elif _commits_by_itself(connection):
            raise UsageError(NO_TRANSACTION)

    async def _checked(self) -> Any:
        if self._is_session:
            if not self._given.is_active:
                raise UsageError(FAILED)
            self._connection = await self._open_session()
        if self._connection.closed or self._connection.invalidated:
            raise UsageError(CLOSED)
        return self._connection

    async def _open_session(self) -> Any:
        return self._given.connection()

    async def _driver(self, connection: Any) -> Any:
        return connection.connection.driver_connection

    async def execute(self, text: str, values: Any) -> int:
        """Run one statement; return how many rows it changed."""
        count: int = self._connection.exec_driver_sql(text, values).rowcount
        return count

    async def fetch(self, text: str, values: Any) -> list[Row]:
        """Run a query; return its rows as tuples."""
        return [tuple(row) for row in self._connection.exec_driver_sql(text, values)]

    async def begin(self) -> None:
        """Begin a transaction."""
        if self._given.in_transaction():
            raise UsageError(_BEGUN)
        await self.join()

    async def flush(self) -> None:
        """Write what a session has put off."""
        if self._is_session:
            self._given.flush()

    async def commit(self) -> None:
        """Commit the transaction that `begin` opened."""
        self._given.commit()

    async def rollback(self) -> None:
        """Roll back the transaction that `begin` opened."""
        self._given.rollback()

    async def close(self) -> None:
        """Close the connection."""
        self._given.close()


class AsyncSqlAlchemyAdapter(SqlAlchemyAdapter):
    """Adapter for an `AsyncConnection` or an `AsyncSession` of SQLAlchemy."""

    is_async = True

    async def _open_session(self) -> Any:
        return await self._given.connection()

    async def _driver(self, connection: Any) -> Any:
        return (await connection.get_raw_connection()).driver_connection

    async def execute(self, text: str, values: Any) -> int:
        """Run one statement; return how many rows it changed."""
        count: int = (await self._connection.exec_driver_sql(text, values)).rowcount
        return count

    async def fetch(self, text: str, values: Any) -> list[Row]:
        """Run a query; return its rows as tuples."""
        return [tuple(row) for row in await self._connection.exec_driver_sql(text, values)]

    async def flush(self) -> None:
        """Write what a session has put off."""
        if self._is_session:
            await self._given.flush()

    async def commit(self) -> None:
        """Commit the transaction that `begin` opened."""
        await self._given.commit()

    async def rollback(self) -> None:
        """Roll back the transaction that `begin` opened."""
        await self._given.rollback()

    async def close(self) -> None:
        """Close the connection."""
        await self._given.close()


def _commits_by_itself(connection: Any) -> bool:
    plain = getattr(connection, "sync_connection", connection)
    chosen = plain.get_execution_options().get("isolation_level")
    level = plain.default_isolation_level if chosen is None else chosen
    return bool(level == "AUTOCOMMIT")


class DjangoAdapter:
    """Adapter for a connection of Django: `django.db.connection`, or one of `django.db.connections`."""

    library = "Django"
    parameter_style = "pyformat"
    is_async = False

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.database = _named(connection.vendor)
        self._atomic: Any = None

    async def join(self) -> None:
        """Check that writes will belong to a transaction of the caller's."""
        if self._connection.needs_rollback:
            raise UsageError(FAILED)
        if not self._connection.in_atomic_block and self._connection.get_autocommit():
            raise UsageError("no transaction is open; use `with transaction.atomic():`")
        self._connection.ensure_connection()
        if self.database == "sqlite" and needs_begin(self._connection.connection):
            await self.execute("BEGIN IMMEDIATE", {})

    async def execute(self, text: str, values: Any) -> int:
        """Run one statement; return how many rows it changed."""
        with self._connection.cursor() as cursor:
            cursor.execute(text, values)
            count: int = cursor.rowcount
            return count

    async def fetch(self, text: str, values: Any) -> list[Row]:
        """Run a query; return its rows as tuples."""
        with self._connection.cursor() as cursor:
            cursor.execute(text, values)
            return [tuple(row) for row in cursor.fetchall()]

    async def begin(self) -> None:
        """Begin an outermost `atomic` block, so that blocks of the user's function nest into it."""
        self._atomic = import_module("django.db.transaction").atomic(using=self._connection.alias, durable=True)
        self._atomic.__enter__()
        if self.database == "sqlite" and getattr(self._connection, "transaction_mode", None) in (None, "DEFERRED"):
            # Django begins as a reader, which SQLite may refuse to turn into a writer later.
            await self.execute("ROLLBACK", {})
            await self.execute("BEGIN IMMEDIATE", {})

    async def flush(self) -> None:
        """Do nothing: the library writes every statement at once."""

    async def commit(self) -> None:
        """Commit the transaction that `begin` opened."""
        atomic, self._atomic = self._atomic, None
        atomic.__exit__(None, None, None)

    async def rollback(self) -> None:
        """Roll back the transaction that `begin` opened."""
        atomic, self._atomic = self._atomic, None
        if atomic is not None:
            self._connection.needs_rollback = True
            atomic.__exit__(None, None, None)

    async def close(self) -> None:
        """Close the connection if Django's settings say so, as Django does after a request."""
        self._connection.close_if_unusable_or_obsolete()
