"""The caller's own open transaction, as the shared SQL verbs see it.

Writes become visible when the caller commits and vanish when the caller rolls back. This module never commits or rolls
back the whole transaction: a savepoint around each use undoes the writes of a verb that fails. Errors of the caller's
library pass through unchanged, because the caller knows how to handle them.

The shared SQL has `:name` parameters, which `render` translates for each library. The names of the styles are those of
PEP 249, with `numeric_dollar` for `$1`.
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

#: Maximum number of parameters in one statement; every database accepts more.
_MOST = 2000


class RenderedStatement(Struct, frozen=True):
    """A statement in the parameter style of a library."""

    text: str
    #: Parameter names in the order of their values; None: values are passed by name.
    names: tuple[str, ...] | None

    def bind(self, values: Mapping[str, Any]) -> Any:
        """Return the parameters in the form that the library takes."""
        return dict(values) if self.names is None else tuple(values[name] for name in self.names)


def render(sql: str, style: str) -> RenderedStatement:
    """Translate a statement with `:name` parameters into another style. Raises `UsageError` for an unknown style."""
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
            raise UsageError(f"a library with the parameter style {style!r} cannot be used with Perdure")


def multi_row_insert(sql: str, rows: Sequence[Mapping[str, Any]]) -> tuple[str, dict[str, Any], int]:
    """Turn an INSERT of one row into one of as many of the first rows as fit.

    Returns the statement, its parameters and the number of rows.
    """
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

_WRITE_NOTHING = "UPDATE perdure_migrations SET version = version WHERE version < 0"

_NAMES = {"sqlite": "SQLite", "postgres": "PostgreSQL", "mysql": "MySQL"}


class StoreDatabase(Struct, frozen=True, kw_only=True):
    """The database of a store: what a connection to it is checked against."""

    dialect: Dialect
    #: The prefix of its table names.
    tables: str
    #: Its description in messages.
    where: str
    #: Its clock, where that is the clock of this machine.
    clock: Callable[[], int]
    #: Its file, on SQLite; None: in memory.
    file: str | None = ""
    audit: Audit = Audit.LIFECYCLE


class UserTransaction:
    """A `Transaction` on the caller's connection. Without `locking`, reads lock no rows."""

    def __init__(
        self, adapter: ConnectionAdapter, database: StoreDatabase, actor: str, *, locking: bool = True
    ) -> None:
        self.actor = actor
        self.notes = database.audit is not Audit.OFF
        self.repeats = database.audit is Audit.FULL
        #: The caller commits, so this object never learns when its writes are durable.
        self.has_observers = False  # equivalent: constant: only admissions read it
        self._locking = locking
        self.now = 0
        self._adapter = adapter
        self._database = database
        self._notes: list[Params] = []

    async def execute(self, sql: str, params: Params) -> int:
        """Run one statement; return how many rows it changed."""
        statement = render(self._database.dialect.render(sql, self._database.tables), self._adapter.parameter_style)
        return await self._adapter.execute(statement.text, statement.bind(params))

    async def execute_many(self, sql: str, rows: Sequence[Params]) -> int:
        """Run one statement per row of parameters, or one INSERT for many rows; return how many rows were changed."""
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
        statement = render(self._database.dialect.render(sql, self._database.tables), self._adapter.parameter_style)
        return await self._adapter.fetch(statement.text, statement.bind(params))

    def note(self, run_id: str, kind: str, data: str = "{}") -> None:
        """Add an event to the audit trail, if the audit level includes its kind."""
        if self._database.audit.writes(kind):
            self._notes.append({"run_id": run_id, "at": self.now, "kind": kind, "actor": self.actor, "data": data})

    def note_past(self, run_id: str, at: int, kind: str, actor: str, data: str) -> None:
        """Add the audit event of an earlier cause, which wrote none itself."""
        if self._database.audit.writes(kind):
            self._notes.append({"run_id": run_id, "at": at, "kind": kind, "actor": actor, "data": data})

    def notify(self, change: Change) -> None:
        """Do nothing: waiting processes poll, and see the change once the caller has committed."""

    def bury(self, run_id: str, error: str) -> None:
        """Do nothing: whether the caller commits is unknown."""

    async def write_notes(self) -> None:
        """Write the audit events to the database, within the transaction."""
        notes, self._notes = self._notes, []
        await self.execute_many(_NOTE, notes)

    async def arrive(self) -> None:
        """Check that this is the store's database, with queries that cannot fail, and read its time."""
        if self._database.dialect.name == "sqlite":
            await self._compare_files()
            await self._become_writer()
        dialect = self._database.dialect
        query = (
            f"SELECT {dialect.time} FROM ({dialect.table_exists}) AS found" if dialect.time else dialect.table_exists
        )
        found = await self.fetch(query, {"name": f"{self._database.tables}runs"})
        if not found:
            raise SchemaMismatch(
                f"the database of the given connection has no table {self._database.tables}runs; connect to the "
                f"engine's own database ({self._database.where}), or, if this is it, run `perdure migrate` once"
            )
        self.now = found[0][0] if dialect.time else self._database.clock()

    async def _compare_files(self) -> None:
        if self._database.file is None:
            raise UsageError("the engine's database is in memory, which no other connection reaches; use a file")
        files = await self.fetch("PRAGMA database_list", {})
        there = next((file for _, name, file in files if name == "main"), "")
        if not there or _real(there) != _real(self._database.file):
            raise UsageError(
                f"the given connection leads to {there or 'a database in memory'}, and not to the engine's database; "
                f"connect to {self._database.where}"
            )

    async def _become_writer(self) -> None:
        """Lock the file before the first read: SQLite may refuse to turn a reader into a writer later."""
        try:
            await self.execute(_WRITE_NOTHING, {})
        except Exception as error:
            # The next query tells what to do about a database without tables.
            if "no such table" not in str(error):
                raise


def _real(file: str) -> str:
    return os.path.realpath(file)


def check_database(adapter: ConnectionAdapter, database: StoreDatabase) -> None:
    """Raise `UsageError` if a connection leads to another kind of database."""
    if adapter.database != database.dialect.name:
        ours, theirs = (_NAMES.get(name, name) for name in (database.dialect.name, adapter.database))
        raise UsageError(f"the given connection leads to {theirs}; the engine's database is {ours}")


@asynccontextmanager
async def join_transaction(
    connection: object, database: StoreDatabase, actor: str, *, locking: bool
) -> AsyncGenerator[UserTransaction]:
    """Write within the transaction that is open on a connection. Raises `UsageError` if none is open, or elsewhere."""
    adapter = adapter_for(connection)
    check_database(adapter, database)
    try:
        await adapter.join()
    except UsageError as problem:
        raise UsageError(f"nothing can be written on this connection of {adapter.library}: {problem}") from None
    transaction = UserTransaction(adapter, database, actor, locking=locking)
    await transaction.arrive()
    await transaction.execute("SAVEPOINT perdure", {})
    try:
        yield transaction
        await transaction.write_notes()
    except BaseException:
        # A broken connection, or a transaction that has ended, needs no undoing.
        with suppress(Exception):
            await transaction.execute("ROLLBACK TO SAVEPOINT perdure", {})
        raise
    await transaction.execute("RELEASE SAVEPOINT perdure", {})
