"""Clients of database libraries, behind one interface, so that one test can hold for all of them.

A synchronous library runs on a thread of its own and uses the blocking engine.
"""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
import uuid
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, TypeVar
from urllib.parse import urlsplit

import asyncmy
import asyncpg
import django
import psycopg
import pymysql
import sqlalchemy
import sqlalchemy.ext.asyncio
import sqlalchemy.orm
from django.conf import settings
from django.db import connections, transaction

from perdure import Engine
from perdure.blocking import Engine as BlockingEngine
from perdure.store.url import MysqlUrl, parse

T = TypeVar("T")

if not settings.configured:
    settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}})
    django.setup()

_aliases = itertools.count()


def plain(url: str) -> str:
    """Return a URL without the options that only Perdure understands."""
    return url.partition("?")[0]


class Customer:
    """A client with a connection to the engine's database, through sqlite3."""

    waits = False

    def __init__(self, url: str) -> None:
        self.url = url
        self.connection: Any = None
        self._thread = ThreadPoolExecutor(1)
        self._blocking: BlockingEngine | None = None

    @property
    def file(self) -> str:
        return plain(self.url).removeprefix("sqlite:///")

    @property
    def place(self) -> dict[str, Any]:
        url = parse(self.url)
        assert isinstance(url, MysqlUrl)
        return {
            "host": url.host,
            "port": url.port,
            "user": url.user,
            "password": url.password,
            "database": url.database,
        }

    async def here(self, work: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *args)

    async def open(self) -> None:
        self.connection = await self.here(self.connect)

    async def close(self) -> None:
        await self.here(self.disconnect)
        self._thread.shutdown()

    def disconnect(self) -> Any:
        self.connection.close()

    def connect(self) -> Any:
        return sqlite3.connect(self.file)

    def connect_committing(self) -> Any:
        """Open a connection in autocommit mode."""
        return sqlite3.connect(self.file, isolation_level=None)

    async def execute(self, sql: str) -> None:
        await self.here(self.run, sql)

    def run(self, sql: str) -> Any:
        self.connection.execute(sql)

    async def begin(self) -> None:
        await self.here(self.open_transaction)

    def open_transaction(self) -> Any:
        self.connection.execute("BEGIN IMMEDIATE")

    async def commit(self) -> None:
        await self.here(self.connection.commit)

    async def rollback(self) -> None:
        await self.here(self.connection.rollback)

    async def call(self, engine: Engine, method: str, *args: Any, **options: Any) -> Any:
        """Call a method of the engine with the connection."""
        blocking = engine.blocking()
        return await self.here(lambda: getattr(blocking, method)(*args, connection=self.connection, **options))

    async def reset(self, connection: Callable[[], Any]) -> None:
        """Use another connection instead."""
        await self.here(self.disconnect)
        self.connection = await self.here(connection)


class RowFactories(Customer):
    """A client through sqlite3 with a row factory."""

    def connect(self) -> Any:
        connection = sqlite3.connect(self.file)
        connection.row_factory = lambda cursor, row: {
            column[0]: value for column, value in zip(cursor.description, row, strict=True)
        }
        return connection


class Psycopg(Customer):
    def connect(self) -> Any:
        return psycopg.connect(plain(self.url), prepare_threshold=None, row_factory=psycopg.rows.dict_row)

    def connect_committing(self) -> Any:
        return psycopg.connect(plain(self.url), prepare_threshold=None, autocommit=True)

    def open_transaction(self) -> Any:
        self.connection.execute("SELECT 1")


class PyMysql(Customer):
    def connect(self) -> Any:
        return pymysql.connect(**self.place, cursorclass=pymysql.cursors.DictCursor)

    def connect_committing(self) -> Any:
        return pymysql.connect(**self.place, autocommit=True)

    def open_transaction(self) -> Any:
        self.connection.begin()

    def run(self, sql: str) -> Any:
        self.connection.query(sql)


class Alchemy(Customer):
    def engine(self) -> sqlalchemy.Engine:
        url = plain(self.url).replace("postgresql:", "postgresql+psycopg:").replace("mysql:", "mysql+pymysql:")
        # Statements are not prepared, because there may be a pooler in between.
        how = {"prepare_threshold": None} if "psycopg" in url else {}
        return sqlalchemy.create_engine(url, poolclass=sqlalchemy.pool.NullPool, connect_args=how)

    def connect(self) -> Any:
        return self.engine().connect()

    def connect_committing(self) -> Any:
        return self.engine().connect().execution_options(isolation_level="AUTOCOMMIT")

    def open_transaction(self) -> Any:
        self.connection.begin()

    def run(self, sql: str) -> Any:
        self.connection.execute(sqlalchemy.text(sql))


class AlchemySession(Alchemy):
    def connect(self) -> Any:
        return sqlalchemy.orm.Session(self.engine())

    def connect_committing(self) -> Any:
        return sqlalchemy.orm.Session(self.engine().execution_options(isolation_level="AUTOCOMMIT"))


class Django(Customer):
    alias = ""
    atomic: Any = None

    def connect(self) -> Any:
        self.alias = f"test_{next(_aliases)}"
        parts = urlsplit(self.url)
        if parts.scheme == "sqlite":
            options: dict[str, Any] = {"ENGINE": "django.db.backends.sqlite3", "NAME": self.file}
        else:
            options = {
                "ENGINE": "django.db.backends.postgresql",
                "NAME": parts.path[1:],
                "USER": parts.username,
                "HOST": parts.hostname,
                "PORT": parts.port,
            }
        connections.settings.update(
            connections.configure_settings({"default": connections.settings["default"], self.alias: options})
        )
        return connections[self.alias]

    connect_committing = connect

    def open_transaction(self) -> Any:
        self.atomic = transaction.atomic(using=self.alias)
        self.atomic.__enter__()

    async def commit(self) -> None:
        await self.here(self.atomic.__exit__, None, None, None)

    async def rollback(self) -> None:
        await self.here(transaction.set_rollback, True, self.alias)
        await self.here(self.atomic.__exit__, None, None, None)

    def run(self, sql: str) -> Any:
        with self.connection.cursor() as cursor:
            cursor.execute(sql)


class DjangoByHand(Django):
    """A client through Django without `atomic`."""

    def open_transaction(self) -> Any:
        self.connection.set_autocommit(False)

    async def commit(self) -> None:
        await self.here(self.connection.commit)

    async def rollback(self) -> None:
        await self.here(self.connection.rollback)


class AsyncCustomer(Customer):
    """A client through an asynchronous library, asyncpg."""

    waits = True

    async def here(self, work: Callable[..., Any], *args: Any) -> Any:
        return await work(*args)

    async def connect(self) -> Any:
        return await asyncpg.connect(plain(self.url), statement_cache_size=0)

    connect_committing = connect

    async def disconnect(self) -> Any:
        await self.connection.close()

    async def run(self, sql: str) -> Any:
        await self.connection.execute(sql)

    async def open_transaction(self) -> Any:
        await self.connection.execute("BEGIN")

    async def commit(self) -> None:
        await self.connection.execute("COMMIT")

    async def rollback(self) -> None:
        await self.connection.execute("ROLLBACK")

    async def call(self, engine: Engine, method: str, *args: Any, **options: Any) -> Any:
        return await getattr(engine, method)(*args, connection=self.connection, **options)


class AsyncPsycopg(AsyncCustomer):
    async def connect(self) -> Any:
        return await psycopg.AsyncConnection.connect(
            plain(self.url), prepare_threshold=None, row_factory=psycopg.rows.dict_row
        )

    async def connect_committing(self) -> Any:
        return await psycopg.AsyncConnection.connect(plain(self.url), prepare_threshold=None, autocommit=True)

    async def open_transaction(self) -> Any:
        await self.connection.execute("SELECT 1")

    async def commit(self) -> None:
        await self.connection.commit()

    async def rollback(self) -> None:
        await self.connection.rollback()


class Asyncmy(AsyncPsycopg):
    async def connect(self) -> Any:
        return await asyncmy.connect(**self.place)

    async def connect_committing(self) -> Any:
        return await asyncmy.connect(**self.place, autocommit=True)

    async def open_transaction(self) -> Any:
        await self.connection.begin()

    async def disconnect(self) -> Any:
        await self.connection.ensure_closed()

    async def run(self, sql: str) -> Any:
        await self.connection.query(sql)


def _unique_name() -> str:
    return f"customer_{uuid.uuid4().hex}"


class AsyncAlchemy(AsyncPsycopg):
    def engine(self) -> sqlalchemy.ext.asyncio.AsyncEngine:
        drivers = {"postgresql": "asyncpg", "sqlite": "aiosqlite", "mysql": "asyncmy"}
        scheme, _, rest = plain(self.url).partition(":")
        url = f"{scheme}+{drivers[scheme]}:{rest}"
        # As its manual says for a pooler: it prepares all statements, whose names then have to be unique.
        how = {
            "prepared_statement_cache_size": 0,
            "statement_cache_size": 0,
            "prepared_statement_name_func": _unique_name,
        }
        on_postgres = scheme == "postgresql"
        return sqlalchemy.ext.asyncio.create_async_engine(
            url, poolclass=sqlalchemy.pool.NullPool, connect_args=how if on_postgres else {}
        )

    async def connect(self) -> Any:
        return await self.engine().connect()

    async def connect_committing(self) -> Any:
        return await (await self.connect()).execution_options(isolation_level="AUTOCOMMIT")

    async def open_transaction(self) -> Any:
        await self.connection.begin()

    async def run(self, sql: str) -> Any:
        await self.connection.execute(sqlalchemy.text(sql))


class AsyncAlchemySession(AsyncAlchemy):
    async def connect(self) -> Any:
        return sqlalchemy.ext.asyncio.AsyncSession(self.engine())

    async def connect_committing(self) -> Any:
        return sqlalchemy.ext.asyncio.AsyncSession(self.engine().execution_options(isolation_level="AUTOCOMMIT"))


LIBRARIES: dict[str, dict[str, type[Customer]]] = {
    "sqlite": {
        "sqlite3": Customer,
        "sqlite3 rows": RowFactories,
        "alchemy": Alchemy,
        "alchemy session": AlchemySession,
        "alchemy async": AsyncAlchemy,
        "alchemy async session": AsyncAlchemySession,
        "django": Django,
        "django by hand": DjangoByHand,
    },
    "postgres": {
        "asyncpg": AsyncCustomer,
        "psycopg": Psycopg,
        "psycopg async": AsyncPsycopg,
        "alchemy": Alchemy,
        "alchemy session": AlchemySession,
        "alchemy async": AsyncAlchemy,
        "alchemy async session": AsyncAlchemySession,
        "django": Django,
        "django by hand": DjangoByHand,
    },
    "mysql": {
        "asyncmy": Asyncmy,
        "pymysql": PyMysql,
        "alchemy": Alchemy,
        "alchemy session": AlchemySession,
        "alchemy async": AsyncAlchemy,
        "alchemy async session": AsyncAlchemySession,
    },
}

ALL = [(database, library) for database, libraries in LIBRARIES.items() for library in libraries]


@asynccontextmanager
async def customer(database: str, library: str, url: str) -> AsyncIterator[Customer]:
    """Open a client for the duration of a block."""
    someone = LIBRARIES[database][library](url)
    await someone.open()
    try:
        yield someone
    finally:
        await someone.close()
