"""A place of its own on a test server for each test, so that tests may run side by side.

Making twenty tables and indexes takes longer than most tests. So a place that a test has left as it was made is
emptied and handed to the next one.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from perdure.host import Host
from perdure.store import open_store
from perdure.store.migrations import known
from perdure.store.sql.dialect import Dialect
from perdure.store.url import PostgresUrl, SqliteUrl, parse
from tests.invariants import scan

TABLES = (
    "runs", "history", "messages", "events", "outputs", "topics", "waiters", "observers", "pauses", "schedules",
    "workers", "registry", "gates", "lines",
    "permits", "shares", "locks", "singletons", "successors", "watermarks", "health", "attributes", "tokens",
    "documents", "graph_checkpoints",
)  # fmt: skip
MIGRATIONS = "SELECT version, checksum FROM {}.perdure_migrations ORDER BY version"


def dsn_of(variable: str) -> str:
    """Where a test server is; skips the test where there is none."""
    dsn = os.environ.get(variable)
    if not dsn:
        pytest.skip(f"{variable} is not set; `make test` starts a server by itself")
    return dsn


class Places(ABC):
    """Those that this process has made."""

    variable: str
    dialect: Dialect
    #: What keeps the server from looking at a table by itself.
    still: str

    def __init__(self) -> None:
        self._spare: list[str] = []
        self._made: set[str] = set()
        #: One connection for all that is done between tests: making one, and having it find out what tables there are,
        #: takes longer.
        self._cleaner: Any = None
        self._migrations = [(one.version, one.checksum) for one in known(self.dialect)]

    @asynccontextmanager
    async def one(self, *, fresh: bool = False, still: bool = False) -> AsyncIterator[str]:
        """The URL of a place: without any tables if it is to be fresh, otherwise perhaps with empty ones.

        For tests of plans it can be still: what the server knows about its tables is what the test tells it to find
        out, not what another test left behind there, or what the server looked at by itself in the middle of the test.
        """
        fresh = fresh or still
        dsn = dsn_of(self.variable)
        name = self._spare.pop() if self._spare and not fresh else f"test_{uuid.uuid4().hex}"
        if name not in self._made:
            self._made.add(name)
            await self._make(dsn, name)
        if still:
            store = open_store(self._url(dsn, name), Host())
            await store.open()
            for table in TABLES:
                await store.query(f"ALTER TABLE perdure_{table} {self.still}")
            await store.close()
        yield self._url(dsn, name)
        # What a test has changed about the tables themselves is nothing for the next one.
        if not fresh and self._is_sound(name):
            self._clear(name)
            self._spare.append(name)

    def broken(self, url: str) -> list[str]:
        """The promises that what is in a place breaks."""
        where = parse(url)
        assert not isinstance(where, SqliteUrl)
        name = where.schema if isinstance(where, PostgresUrl) else where.database
        return scan(self._ask, prefix=f"{name}.perdure_")

    def _is_sound(self, name: str) -> bool:
        """Whether the tables are there, and as they were made."""
        [[there]] = self._ask(
            f"SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = '{name}' "
            "AND table_name = 'perdure_migrations'"
        )
        return bool(there) and self._ask(MIGRATIONS.format(name)) == self._migrations

    def _clear(self, name: str) -> None:
        """Empty the tables, with one packet for all of them."""
        with self._cursor() as cursor:
            cursor.execute(";".join(f"DELETE FROM {name}.perdure_{table}" for table in TABLES))
            while cursor.nextset():
                pass

    def _ask(self, sql: str) -> list[tuple[Any, ...]]:
        with self._cursor() as cursor:
            cursor.execute(sql)
            return [tuple(row) for row in cursor.fetchall()] if cursor.description else []

    def _cursor(self) -> Any:
        if self._cleaner is None:
            self._cleaner = self._connected(dsn_of(self.variable))
        return self._cleaner.cursor()

    def drop(self) -> None:
        """All of them."""
        if self._cleaner is not None:
            self._cleaner.close()
        if self._made:
            asyncio.run(self._drop(dsn_of(self.variable), self._made))

    @abstractmethod
    def _url(self, dsn: str, name: str) -> str:
        """How a place is named."""

    @abstractmethod
    async def _make(self, dsn: str, name: str) -> None:
        """Make a place, if it has to be made."""

    @abstractmethod
    def _connected(self, dsn: str) -> Any:
        """A connection that commits every statement."""

    @abstractmethod
    async def _drop(self, dsn: str, names: set[str]) -> None:
        """Remove places."""
