"""The caller's own open transaction, as shared verbs see it.

What is written becomes visible when the caller commits and is gone when the caller rolls back. Here nothing is ever committed or
rolled back as a whole: a savepoint around each use sees to it that an error leaves nothing behind. Errors of the caller's
library pass through as they are, because the caller knows what to do about them.
"""

from __future__ import annotations

import os
import re
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from msgspec import Struct

from perdure.core.audit import Audit
from perdure.errors import SchemaMismatch, UsageError
from perdure.store.contract import Change
from perdure.store.sql.dialect import Dialect, Params, Row
from perdure.store.user_connections.adapter import ConnectionAdapter, adapter_for

_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]\w*)")
_VALUES = re.compile(r"VALUES\s*(\(.*?\))", re.DOTALL)

#: Parameters of one statement at the most; every database takes more.
_MOST = 2000


class RenderedStatement(Struct, frozen=True):
    """A statement as a library wants it."""

    text: str
    #: In the order in which values are to be given; None where they are given by name.
    names: tuple[str, ...] | None

    def bind(self, values: Mapping[str, Any]) -> Any:
        """The parameters as the library wants them."""
        return dict(values) if self.names is None else tuple(values[name] for name in self.names)


def render(sql: str, style: str) -> RenderedStatement:
    """A statement with `:name` parameters in another style. Raises `UsageError` for one that nobody knows."""
    names = tuple(_PARAMETER.findall(sql))
    match style:
        case "named":
            return RenderedStatement(sql, None)
        case "pyformat":
            return RenderedStatement(_PARAMETER.sub(r"%(\1)s", sql.replace("%", "%%")), None)
        case "format":
            return RenderedStatement(_PARAMETER.sub("%s", sql.replace("%", "%%")), names)
        case "qmark":
            return RenderedStatement(_PARAMETER.sub("?", sql), names)
        case "numeric_dollar":
            places = {name: f"${place}" for place, name in enumerate(dict.fromkeys(names), 1)}
            return RenderedStatement(_PARAMETER.sub(lambda found: places[found[1]], sql), tuple(places))
        case _:
            raise UsageError(f"A library with the parameter style {style!r} cannot be used with Perdure.")


def multi_row_insert(sql: str, rows: Sequence[Mapping[str, Any]]) -> tuple[str, dict[str, Any], int]:
    """An INSERT of one row as one of the first of these, with its parameters, and how many that are."""
    taken = rows[: max(1, _MOST // len(rows[0]))]
    found = _VALUES.search(sql)
    assert found is not None, "not an INSERT of values"
    lists = (_PARAMETER.sub(rf":\1_{number}", found[1]) for number in range(len(taken)))
    text = f"{sql[: found.start(1)]}{', '.join(lists)}{sql[found.end(1) :]}"
    return text, {f"{name}_{number}": row[name] for number, row in enumerate(taken) for name in row}, len(taken)


_NOTE = """
INSERT INTO perdure_events (run_id, at, kind, actor, data)
VALUES (:run_id, :at, :kind, :actor, :data)
"""

_NAMES = {"sqlite": "SQLite", "postgres": "PostgreSQL", "mysql": "MySQL"}


class StoreDatabase(Struct, frozen=True, kw_only=True):
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


class UserTransaction:
    """See `perdure.store.sql.dialect.Transaction`. Without `locking`, rows are only looked at."""

    def __init__(self, adapter: ConnectionAdapter, home: StoreDatabase, actor: str, *, locking: bool = True) -> None:
        self.actor = actor
        self.notes = home.audit is not Audit.OFF
        self.repeats = home.audit is Audit.FULL
        #: When it is durable is not known here.
        self.has_observers = False
        self._locking = locking
        self.now = 0
        self._adapter = adapter
        self._home = home
        self._notes: list[Params] = []

    async def execute(self, sql: str, params: Params) -> int:
        """Run one statement; how many rows it changed."""
        statement = render(self._home.dialect.render(sql, self._home.tables), self._adapter.parameter_style)
        return await self._adapter.execute(statement.text, statement.bind(params))

    async def execute_many(self, sql: str, rows: Sequence[Params]) -> int:
        """Run one statement for each of the rows; an INSERT for many at once."""
        if not sql.lstrip().startswith("INSERT"):
            return sum([await self.execute(sql, row) for row in rows])
        changed = 0
        while rows:
            text, params, done = multi_row_insert(sql, rows)
            changed += await self.execute(text, params)
            rows = rows[done:]
        return changed

    async def fetch(self, sql: str, params: Params) -> list[Row]:
        """Run a query."""
        if not self._locking:
            sql = sql.replace("{for_update}", "")
        statement = render(self._home.dialect.render(sql, self._home.tables), self._adapter.parameter_style)
        return await self._adapter.fetch(statement.text, statement.bind(params))

    def note(self, run_id: str, kind: str, data: str = "{}") -> None:
        """Add a line to the audit trail, if it is of the level that is written."""
        if self._home.audit.writes(kind):
            self._notes.append({"run_id": run_id, "at": self.now, "kind": kind, "actor": self.actor, "data": data})

    def notify(self, change: Change) -> None:
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


def check_database(adapter: ConnectionAdapter, home: StoreDatabase) -> None:
    """Raise `UsageError` if a connection speaks to another kind of database."""
    if adapter.database != home.dialect.name:
        ours, theirs = (_NAMES.get(name, name) for name in (home.dialect.name, adapter.database))
        raise UsageError(f"The connection that was given is to {theirs}; the engine's database is {ours}.")


@asynccontextmanager
async def join_transaction(
    connection: object, home: StoreDatabase, actor: str, *, locking: bool
) -> AsyncGenerator[UserTransaction]:
    """The transaction that is open on somebody's connection. Raises `UsageError` if there is none, or elsewhere."""
    adapter = adapter_for(connection)
    check_database(adapter, home)
    try:
        await adapter.join()
    except UsageError as problem:
        raise UsageError(f"Nothing can be written on this connection of {adapter.library}: {problem}.") from None
    transaction = UserTransaction(adapter, home, actor, locking=locking)
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
