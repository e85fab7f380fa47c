"""A transaction on PostgreSQL, as the shared SQL verbs see it.

Statements have `:name` parameters, which become `$1` here. A statement for many rows becomes one statement over arrays,
so that it costs one round trip for any number of rows.

The columns of many rows are parameters of one statement: one array, or one joined text, for each column. Joined text is
the fast form. The driver spends 0.4 microseconds on every item of an array, which for the columns of a step adds up to
more than everything else that writing the step costs; joining and splitting text costs next to nothing. The separators
occur neither in JSON nor in any sensible name. If one occurs in a value, `Unjoinable` is raised and the caller uses
arrays.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from perdure.core.audit import Audit
from perdure.store.postgres.driver import PostgresConnection
from perdure.store.server.clock import ServerClock, ServerTransactionLog
from perdure.store.server.pool import Timeouts
from perdure.store.sql.dialect import POSTGRES, Params, Row

_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]\w*)")
_VALUES = re.compile(r"VALUES\s*\((.*?)\)", re.DOTALL)

NOTES = """
INSERT INTO perdure_events (run_id, at, kind, actor, data)
SELECT * FROM unnest($1::text[], $2::bigint[], $3::text[], $4::text[], $5::text[])
"""


def begin(timeouts: Timeouts) -> str:
    """Return the statement that begins a writing transaction."""
    return (
        "BEGIN ISOLATION LEVEL READ COMMITTED; "
        f"SET LOCAL lock_timeout = {int(1000 * timeouts.lock)}; "
        f"SET LOCAL statement_timeout = {int(1000 * timeouts.server_statement)}; "
        f"SET LOCAL idle_in_transaction_session_timeout = {int(1000 * timeouts.statement)}"
    )


class StatementCache:
    """Statements in the form that the server gets, each rendered once."""

    def __init__(self, tables: str, fence: str = "") -> None:
        self._tables = tables
        #: A condition that every lease check includes, in place of `{fence}`.
        self._fence = fence
        self._named: dict[str, tuple[str, list[str]]] = {}
        self._plain: dict[str, str] = {}
        self._made: dict[tuple[Callable[[int], str], int], str] = {}
        self._types: dict[str, list[str]] = {}

    def named(self, sql: str) -> tuple[str, list[str]]:
        """Render a statement with `:name` parameters; return the text and the names in the order of their numbers."""
        found = self._named.get(sql)
        if found is None:
            names = list(dict.fromkeys(_PARAMETER.findall(sql)))
            numbers = {name: f"${place}" for place, name in enumerate(names, 1)}
            found = self._render(_PARAMETER.sub(lambda match: numbers[match[1]], sql)), names
            self._named[sql] = found
        return found

    def plain(self, sql: str) -> str:
        """Render a statement with `$1` parameters."""
        found = self._plain.get(sql)
        if found is None:
            found = self._plain[sql] = self._render(sql)
        return found

    def made(self, make: Callable[[int], str], size: int) -> str:
        """Render a statement whose text depends on a number."""
        found = self._made.get((make, size))
        if found is None:
            found = self._made[make, size] = self._render(make(size))
        return found

    def over_arrays(self, sql: str, types: Sequence[str]) -> str:
        """Render a statement with `:name` parameters of these types for arrays of parameters."""
        _, names = self.named(sql)
        arrays = ", ".join(f"${place}::{kind}[]" for place, kind in enumerate(types, 1))
        source = f"FROM unnest({arrays}) AS given ({', '.join('given_' + name for name in names)})"
        text = _PARAMETER.sub(lambda match: f"given_{match[1]}", sql)
        if text.lstrip().startswith("INSERT"):
            return self._render(_VALUES.sub(lambda match: f"SELECT {match[1]} {source}", text))
        if text.lstrip().startswith("DELETE"):
            source = source.replace("FROM", "USING", 1)
        return self._render(text.replace("WHERE ", f"{source}\nWHERE ", 1))

    async def types(self, connection: PostgresConnection, sql: str) -> list[str]:
        """Return the types of a statement's parameters, which the server knows."""
        found = self._types.get(sql)
        if found is None:
            prepared = await connection.prepare(self.named(sql)[0], name="")
            found = self._types[sql] = [kind.name for kind in prepared.get_parameters()]
        return found

    def _render(self, sql: str) -> str:
        return POSTGRES.render(sql.replace("{fence}", self._fence), self._tables)


class PostgresTransaction(ServerTransactionLog):
    """A `Transaction` on PostgreSQL. Without `locking`, reads lock no rows."""

    def __init__(
        self,
        connection: PostgresConnection,
        statements: StatementCache,
        clock: ServerClock,
        actor: str,
        audit: Audit,
        *,
        locking: bool,
        has_observers: bool = False,
    ) -> None:
        super().__init__(clock, actor, audit, has_observers=has_observers)
        self.connection = connection
        self._statements = statements
        self._locking = locking
        self.epoch = connection.epoch
        #: Seconds that `execute` may take; None: the usual number.
        self.patience: float | None = None

    async def execute(self, sql: str, params: Params) -> int:
        """Run one statement; return how many rows it changed."""
        text, names = self._statements.named(sql)
        return rows_of(await self.connection.execute(text, *(params[name] for name in names), timeout=self.patience))

    async def execute_many(self, sql: str, rows: Sequence[Params]) -> int:
        """Run one statement for each row of parameters, in one round trip; return how many rows were changed."""
        if not rows:
            return 0
        if len(rows) == 1:
            return await self.execute(sql, rows[0])
        _, names = self._statements.named(sql)
        text = self._statements.over_arrays(sql, await self._statements.types(self.connection, sql))
        return rows_of(await self.connection.execute(text, *([row[name] for row in rows] for name in names)))

    async def fetch(self, sql: str, params: Params) -> list[Row]:
        """Run a query."""
        if "{for_update}" in sql:
            # The query may wait for locks, so the time is read anew afterwards.
            self.locked()
            if not self._locking:
                sql = sql.replace("{for_update}", "")
        text, names = self._statements.named(sql)
        return [tuple(row) for row in await self.connection.fetch(text, *(params[name] for name in names))]

    async def run(self, sql: str, *args: object) -> list[Row]:
        """Run a statement with `$1` parameters, written for PostgreSQL."""
        return [tuple(row) for row in await self.connection.fetch(self._statements.plain(sql), *args)]

    async def run_made(self, make: Callable[[int], str], size: int, *args: object) -> list[Row]:
        """Run a statement whose text depends on a number."""
        return [tuple(row) for row in await self.connection.fetch(self._statements.made(make, size), *args)]

    def take_notes(self) -> list[list[Any]]:
        """Take the audit events as arrays for `NOTES`; the caller has to write them."""
        return [list(column) for column in zip(*self._take_lines(), strict=True)] or [[] for _ in range(5)]

    async def write_notes(self) -> None:
        """Write the audit events to the database, within the transaction."""
        if self._lines:
            await self.connection.execute(self._statements.plain(NOTES), *self.take_notes())


def rows_of(status: str) -> int:
    """Return how many rows a statement changed, from its status."""
    return int(status.rpartition(" ")[2]) if status[-1:].isdigit() else 0


HISTORY = {
    "run_id": "text", "seq": "bigint", "token": "bigint", "kind": "text", "location": "text", "payload": "text",
    "failed": "smallint", "at": "bigint", "started_at": "bigint", "digest": "text", "attempts": "bigint",
    "retry_at": "bigint", "inbox_seq": "bigint", "run_attempt": "bigint",
}  # fmt: skip


def unnest_arrays(columns: Mapping[str, str], first: int) -> str:
    """Return SQL for a table called `given` of array parameters, numbered from `first`."""
    parameters = ", ".join(f"${place}::{kind}[]" for place, kind in enumerate(columns.values(), first))
    return f"unnest({parameters}) AS given ({', '.join(columns)})"


def to_arrays(rows: Sequence[Sequence[Any]], count: int) -> list[list[Any]]:
    """Turn rows into columns; `count` is the number of columns."""
    return [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in range(count)]


#: The separator of two items, and the item that stands for NULL.
_BETWEEN, _NULL = "\x1f", "\x1e"


class Unjoinable(Exception):
    """An item contains one of the separators."""


def unnest_texts(columns: Mapping[str, str], first: int, place: str | None = None, *, name: str = "given") -> str:
    """Return SQL for a table of joined text parameters, numbered from `first`.

    `place` names one more column, for the number of the row, from 1 on.
    """
    arrays = ", ".join(_split(number, kind) for number, kind in enumerate(columns.values(), first))
    if place is None:
        return f"unnest({arrays}) AS {name} ({', '.join(columns)})"
    return f"unnest({arrays}) WITH ORDINALITY AS {name} ({', '.join(columns)}, {place})"


def _split(number: int, kind: str) -> str:
    text = f"string_to_array(${number}::text, E'\\x1f', E'\\x1e')"
    return text if kind == "text" else f"{text}::{kind}[]"


def join_texts(items: Sequence[str | None]) -> str:
    """Join a column of texts; an empty text arrives as NULL. Raises `Unjoinable`."""
    there = list(filter(None, items))
    text = _BETWEEN.join(there if len(there) == len(items) else [item or _NULL for item in items])
    if items and (text.count(_BETWEEN) + 1 != len(items) or text.count(_NULL) + len(there) != len(items)):
        raise Unjoinable
    return text


def join_numbers(items: Iterable[int]) -> str:
    """Join a column of numbers."""
    return _BETWEEN.join(map(str, items))
