"""Opening a store: the URL decides which database, and so which driver, is used."""

from __future__ import annotations

from typing import Literal, overload

from perdure.core.audit import Audit
from perdure.core.system import System
from perdure.errors import UsageError
from perdure.store.migrations import MigrationStatus, script
from perdure.store.sql.dialect import MYSQL, POSTGRES, SQLITE, Dialect
from perdure.store.sql.store import SqlStore
from perdure.store.sqlite.store import SqliteStore
from perdure.store.url import MysqlUrl, PostgresUrl, SqliteUrl, parse


@overload
def open_store(
    url: str, system: System, *, migrate: bool = True, inline: Literal[True], audit: Audit | None = None
) -> SqliteStore: ...


@overload
def open_store(
    url: str, system: System, *, migrate: bool = True, inline: bool = False, audit: Audit | None = None
) -> SqlStore: ...


def open_store(
    url: str, system: System, *, migrate: bool = True, inline: bool = False, audit: Audit | None = None
) -> SqlStore:
    """The store that a URL names; `await store.open()` connects it. Raises `UsageError`.

    `audit` overrides the audit level of the URL. An inline store works on the caller's thread, for simulation and for
    tests on a virtual clock; SQLite only.
    """
    store = _made(url, system, migrate=migrate, inline=inline)
    if audit is not None:
        store.audit = audit
    return store


def _made(url: str, system: System, *, migrate: bool, inline: bool) -> SqlStore:
    where = parse(url)
    if isinstance(where, SqliteUrl):
        return SqliteStore(where, system, migrate=migrate, inline=inline)
    if inline:
        raise UsageError("only SQLite can be driven inline; a server needs an event loop")
    if isinstance(where, MysqlUrl):
        return _mysql(where, system, migrate=migrate)
    return _postgres(where, system, migrate=migrate)


async def migration_status(url: str, system: System) -> list[MigrationStatus]:
    """Each migration of the database and when it was applied."""
    return await open_store(url, system, migrate=False).migrations()


def migration_script(url: str) -> str:
    """The SQL that creates the tables, for reading or for running by hand."""
    return script(*tables_of(url))


def tables_of(url: str) -> tuple[Dialect, str]:
    """The dialect of the database that a URL names, and how the names of its tables begin, with their schema if any."""
    where = parse(url)
    if isinstance(where, SqliteUrl):
        return SQLITE, where.prefix
    if isinstance(where, MysqlUrl):
        return MYSQL, where.prefix
    return POSTGRES, where.tables


def _postgres(url: PostgresUrl, system: System, *, migrate: bool) -> SqlStore:
    try:
        from perdure.store.postgres.store import PostgresStore
    except ModuleNotFoundError as missing:
        if missing.name != "asyncpg":
            raise
        raise UsageError(
            "a postgresql:// URL needs the driver asyncpg, which is not installed: pip install 'perdure[postgres]'"
        ) from missing
    return PostgresStore(url, system, migrate=migrate)


def _mysql(url: MysqlUrl, system: System, *, migrate: bool) -> SqlStore:
    try:
        from perdure.store.mysql.store import MysqlStore
    except ModuleNotFoundError as missing:
        if missing.name != "asyncmy":
            raise
        raise UsageError(
            "a mysql:// URL needs the driver asyncmy, which is not installed: pip install 'perdure[mysql]'"
        ) from missing
    return MysqlStore(url, system, migrate=migrate)
