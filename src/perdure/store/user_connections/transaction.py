"""The caller's own open transaction, as shared verbs see it.

What is written becomes visible when the caller commits and is gone when the caller rolls back. Here nothing is ever committed or
rolled back as a whole: a savepoint around each use sees to it that an error leaves nothing behind. Errors of the caller's
library pass through as they are, because the caller knows what to do about them.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress

from msgspec import Struct

from perdure.core.audit import Audit
from perdure.errors import SchemaMismatch, UsageError
from perdure.store.contract import Change
from perdure.store.sql.dialect import Dialect, Params, Row
from perdure.store.user_connections.adapter import Wire
from perdure.store.user_connections.parameter_styles import in_one, render
from perdure.store.user_connections.recognize import wire_of

_NOTE = """
INSERT INTO perdure_events (run_id, at, kind, actor, data)
VALUES (:run_id, :at, :kind, :actor, :data)
"""

_NAMES = {"sqlite": "SQLite", "postgres": "PostgreSQL", "mysql": "MySQL"}


class Home(Struct, frozen=True, kw_only=True):
    """The database that a store is on."""

    dialect: Dialect
    #: How the names of its tables begin.
    tables: str
    #: The database in messages.
    where: str
    #: Its time, where that is the time of this machine.
    clock: Callable[[], int]
    #: The file that it is; None: in memory.
    file: str | None = ""
    audit: Audit = Audit.LIFECYCLE


class BorrowedTransaction:
    """See `perdure.store.sql.dialect.Transaction`. Without `locking`, rows are only looked at."""

    def __init__(self, wire: Wire, home: Home, actor: str, *, locking: bool = True) -> None:
        self.actor = actor
        self.notes = home.audit is not Audit.OFF
        self.repeats = home.audit is Audit.FULL
        #: When it is durable is not known here.
        self.listened = False
        self._locking = locking
        self.now = 0
        self._wire = wire
        self._home = home
        self._notes: list[Params] = []

    async def execute(self, sql: str, params: Params) -> int:
        """Run one statement; how many rows it changed."""
        statement = render(self._home.dialect.render(sql, self._home.tables), self._wire.style)
        return await self._wire.execute(statement.text, statement.bind(params))

    async def execute_many(self, sql: str, rows: Sequence[Params]) -> int:
        """Run one statement for each of the rows; an INSERT for many at once."""
        if not sql.lstrip().startswith("INSERT"):
            return sum([await self.execute(sql, row) for row in rows])
        changed = 0
        while rows:
            text, params, done = in_one(sql, rows)
            changed += await self.execute(text, params)
            rows = rows[done:]
        return changed

    async def fetch(self, sql: str, params: Params) -> list[Row]:
        """Run a query."""
        if not self._locking:
            sql = sql.replace("{for_update}", "")
        statement = render(self._home.dialect.render(sql, self._home.tables), self._wire.style)
        return await self._wire.fetch(statement.text, statement.bind(params))

    def note(self, run_id: str, kind: str, data: str = "{}") -> None:
        """Add a line to the audit trail, if it is of the level that is written."""
        if self._home.audit.writes(kind):
            self._notes.append({"run_id": run_id, "at": self.now, "kind": kind, "actor": self.actor, "data": data})

    def stir(self, change: Change) -> None:
        """Nothing: whoever waits finds out by itself once the caller has committed, and may never need to."""

    async def write_notes(self) -> None:
        """Put the noted lines into the transaction."""
        notes, self._notes = self._notes, []
        await self.execute_many(_NOTE, notes)

    async def arrive(self) -> None:
        """See that this is the store's database, without a statement that could fail, and ask for its time."""
        if self._home.dialect.name == "sqlite":
            await self._compare_files()
        dialect = self._home.dialect
        query = (
            f"SELECT {dialect.time} FROM ({dialect.table_exists}) AS found" if dialect.time else dialect.table_exists
        )
        found = await self.fetch(query, {"name": f"{self._home.tables}runs"})
        if not found:
            raise SchemaMismatch(
                f"The database of the connection that was given has no table {self._home.tables}runs. Give one to the engine's own "
                f"database ({self._home.where}); if it is, run `perdure migrate` once."
            )
        self.now = found[0][0] if dialect.time else self._home.clock()

    async def _compare_files(self) -> None:
        if self._home.file is None:
            raise UsageError("The engine's database is in memory, where no other connection reaches it. Use a file.")
        files = await self.fetch("PRAGMA database_list", {})
        there = next((file for _, name, file in files if name == "main"), "")
        if not there or _real(there) != _real(self._home.file):
            raise UsageError(
                f"The connection that was given is to {there or 'a database in memory'}, and not to the engine's. {self._home.where} "
                "is the one to connect to."
            )


def _real(file: str) -> str:
    return os.path.realpath(file)


def check_database(wire: Wire, home: Home) -> None:
    """Raise `UsageError` if a connection speaks to another kind of database."""
    if wire.database != home.dialect.name:
        ours, theirs = (_NAMES.get(name, name) for name in (home.dialect.name, wire.database))
        raise UsageError(f"The connection that was given is to {theirs}; the engine's database is {ours}.")


@asynccontextmanager
async def borrow(connection: object, home: Home, actor: str, *, locking: bool) -> AsyncGenerator[BorrowedTransaction]:
    """The transaction that is open on somebody's connection. Raises `UsageError` if there is none, or elsewhere."""
    wire = wire_of(connection)
    check_database(wire, home)
    try:
        await wire.join()
    except UsageError as problem:
        raise UsageError(f"Nothing can be written on this connection of {wire.library}: {problem}.") from None
    transaction = BorrowedTransaction(wire, home, actor, locking=locking)
    await transaction.arrive()
    await transaction.execute("SAVEPOINT perdure", {})
    try:
        yield transaction
        await transaction.write_notes()
    except BaseException:
        # A connection that broke, or a transaction that is gone, needs no undoing.
        with suppress(Exception):
            await transaction.execute("ROLLBACK TO SAVEPOINT perdure", {})
        raise
    await transaction.execute("RELEASE SAVEPOINT perdure", {})
