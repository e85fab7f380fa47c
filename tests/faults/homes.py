"""Where the database of a case is: in a file of its directory, or in a schema or database of its own on a server.

The processes of a case find it by the file `url` in their directory.
"""

from __future__ import annotations

import shutil
import sqlite3
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit, urlunsplit

from perdure.store.url import MysqlUrl, parse
from tests.servers.databases import execute, mysql_dsn
from tests.servers.schemas import drop_schema, postgres_dsn

Row = dict[str, Any]
Look = Callable[[str], Awaitable[list[Row]]]


class Home(Protocol):
    """The database of one case."""

    url: str
    #: Where its processes leave their traces.
    directory: Path

    async def make(self) -> None:
        """Whatever has to be there before anybody opens it."""

    def looking(self, name: str) -> AbstractAsyncContextManager[Look | None]:
        """A way to query what is committed at one moment, under a name that was not used before; None before there are
        tables."""

    async def is_locked(self) -> bool:
        """Whether a transaction holds locks that no limit of the database ends."""

    async def remove(self) -> None:
        """Leave nothing behind."""


class SqliteHome:
    """A file."""

    def __init__(self, directory: Path) -> None:
        self.url = f"sqlite:///{directory}/runs.db"
        self.directory = directory

    async def make(self) -> None:
        """Nothing: the file is made with its tables."""

    @asynccontextmanager
    async def looking(self, name: str) -> AsyncIterator[Look | None]:
        # At a copy, so that looking neither recovers nor checkpoints the original.
        copy = self.directory / name
        copy.mkdir()
        for file in self.directory.glob("runs.db*"):
            if not file.name.endswith(("-shm", "-checkpoint")):
                shutil.copy(file, copy / file.name)
        if not (copy / "runs.db").exists():
            yield None
            return
        with closing(sqlite3.connect(copy / "runs.db")) as connection:
            connection.row_factory = sqlite3.Row

            async def look(sql: str) -> list[Row]:
                return [dict(row) for row in connection.execute(sql)]

            there = await look("SELECT 1 FROM sqlite_master WHERE name = 'perdure_workers'")
            yield look if there else None

    async def is_locked(self) -> bool:
        with closing(sqlite3.connect(self.directory / "runs.db", isolation_level=None, timeout=1.0)) as connection:
            try:
                connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                return True
            return False

    async def remove(self) -> None:
        """It goes with its directory."""


class PostgresHome:
    """A schema."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._dsn = postgres_dsn()
        self._schema = f"case_{uuid.uuid4().hex}"
        self.url = f"{self._dsn}?schema={self._schema}"

    async def make(self) -> None:
        """Nothing: the schema is made with its tables."""

    @asynccontextmanager
    async def looking(self, name: str) -> AsyncIterator[Look | None]:
        async with self._connected() as connection:
            there = await connection.fetchval("SELECT to_regclass($1)", f"{self._schema}.perdure_workers")

            async def look(sql: str) -> list[Row]:
                return [dict(row) for row in await connection.fetch(sql)]

            async with connection.transaction(isolation="repeatable_read", readonly=True):
                yield look if there else None

    async def is_locked(self) -> bool:
        async with self._connected() as connection:
            return bool(await connection.fetchval(_HOLDS_ROWS, self._schema))

    async def remove(self) -> None:
        async with self._connected() as connection:
            await drop_schema(connection, self._schema)

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Any]:
        import asyncpg

        connection = await asyncpg.connect(self._dsn, server_settings={"search_path": self._schema})
        try:
            yield connection
        finally:
            await connection.close()


#: Locking a row takes the number of a transaction. A session that waits for its client and does not count as idle has
#: prepared a
#: statement and not executed it.
_HOLDS_ROWS = """
SELECT COUNT(*)
FROM pg_stat_activity a
JOIN pg_locks t ON t.pid = a.pid AND t.locktype = 'transactionid' AND t.granted
JOIN pg_locks l ON l.pid = a.pid
JOIN pg_class c ON c.oid = l.relation
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND a.state = 'active' AND a.wait_event = 'ClientRead'
"""


class MysqlHome:
    """A database."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._dsn = mysql_dsn()
        self._name = f"case_{uuid.uuid4().hex}"
        self.url = urlunsplit(urlsplit(self._dsn)._replace(path=f"/{self._name}"))

    async def make(self) -> None:
        made = [f"CREATE DATABASE {self._name}", f"CREATE TABLE {self._name}.effects (run TEXT, value TEXT)"]
        await execute(self._dsn, made)

    @asynccontextmanager
    async def looking(self, name: str) -> AsyncIterator[Look | None]:
        import asyncmy
        from asyncmy.cursors import DictCursor

        url = parse(self.url)
        assert isinstance(url, MysqlUrl)
        connection = await asyncmy.connect(
            host=url.host, port=url.port, user=url.user, password=url.password, database=url.database
        )
        try:
            async with connection.cursor(cursor=DictCursor) as cursor:

                async def look(sql: str) -> list[Row]:
                    await cursor.execute(sql)
                    return [dict(row) for row in await cursor.fetchall()]

                there = await look("SHOW TABLES LIKE 'perdure_workers'")
                await cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
                yield look if there else None
        finally:
            await connection.ensure_closed()

    async def is_locked(self) -> bool:
        return False

    async def remove(self) -> None:
        await execute(self._dsn, [f"DROP DATABASE IF EXISTS {self._name}"])


class Homes:
    """Makes them, of one kind."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        if kind != "sqlite":
            (postgres_dsn if kind == "postgres" else mysql_dsn)()

    @property
    def is_file(self) -> bool:
        """Whether there is one writer at a time, and a case costs next to nothing."""
        return self.kind == "sqlite"

    @asynccontextmanager
    async def at(self, directory: Path) -> AsyncIterator[Home]:
        """A home for the processes that work in a directory."""
        home: Home = _HOMES[self.kind](directory)
        directory.mkdir(parents=True)  # noqa: ASYNC240 - a test has nothing else to do
        (directory / "url").write_text(home.url)
        await home.make()
        try:
            yield home
        finally:
            await home.remove()


_HOMES: dict[str, Callable[[Path], Home]] = {"sqlite": SqliteHome, "postgres": PostgresHome, "mysql": MysqlHome}
KINDS = list(_HOMES)
