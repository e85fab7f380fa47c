"""The database: the contract, and the way to one that fulfils it."""

from __future__ import annotations

from perdure.core.system import System
from perdure.store.migrations import MigrationStatus, script
from perdure.store.protocol import Listener, Store
from perdure.store.retrying import Retrying
from perdure.store.sqlite.connection import SQLITE
from perdure.store.sqlite.store import SqliteStore
from perdure.store.url import parse

__all__ = [
    "MUTATING_VERBS",
    "Listener",
    "MigrationStatus",
    "Retrying",
    "Store",
    "migration_script",
    "migration_status",
    "open_store",
]

#: The verbs that write. Each has the crash points `verb.enter`, `verb.begun`, `verb.written` and `verb.committed`.
MUTATING_VERBS = (
    "migrate",
    "create",
    "send",
    "cancel",
    "unblock",
    "register",
    "heartbeat",
    "retire",
    "sweep",
    "claim",
    "commit",
)


def open_store(url: str, system: System, *, migrate: bool = True, inline: bool = False) -> SqliteStore:
    """The store that a URL names; `await store.open()` connects it. Raises `UsageError`.

    An inline store does its work on the thread of the caller: for simulation, and for tests on a virtual clock.
    """
    return SqliteStore(parse(url), system, migrate=migrate, inline=inline)


async def migration_status(url: str, system: System) -> list[MigrationStatus]:
    """Each migration of the database and when it was applied."""
    return await open_store(url, system, migrate=False).migrations()


def migration_script(url: str) -> str:
    """The SQL that creates the tables, for reading or for running by hand."""
    return script(SQLITE, parse(url).prefix)
