"""A transaction on MySQL or MariaDB, as the shared SQL verbs see it, and its statements.

A statement whose result is not needed is queued and sent with the next query or with the COMMIT, because a round trip
costs more than most statements. A statement for many rows is one INSERT of many rows, or many statements in one packet.

The driver's parameters allow neither, so values are written into the SQL text. A template has `:name` where a value
goes. A value that was filled in is never parsed again, so that nothing in it can become SQL.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from perdure.core.audit import Audit
from perdure.store.mysql.driver import AlreadyThere, MysqlConnection, MysqlResult
from perdure.store.server.clock import ServerClock, ServerTransactionLog
from perdure.store.server.commit_batch import RecordsExist
from perdure.store.sql.dialect import MYSQL, Params, Row

_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]\w*)")


class Sql(str):
    """Text that is SQL, and goes into a statement unchanged."""

    __slots__ = ()


NULL = Sql("NULL")


def literal(value: object) -> str:
    """Return a value as an SQL literal.

    Every session uses UTF-8 with backslashes as escapes, so that only the quote and the backslash need escaping.
    """
    # The usual types come first and without function calls: a run with one step has 47 values.
    if type(value) is str:
        return f"'{value}'" if "'" not in value and "\\" not in value else _escaped(value)
    if type(value) is int:
        return f"{value}"
    if value is None:
        return NULL
    if type(value) is Sql:
        return value
    if isinstance(value, str):
        return _escaped(value)
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float):
        # With an exponent, so that it is a double and not a decimal.
        text = repr(float(value))
        return text if "e" in text else f"{text}e0"
    raise TypeError(f"{value!r} of type {type(value).__name__} cannot be stored in a column")


def _escaped(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def sql_list(values: Iterable[object]) -> Sql:
    """Return the list for `IN (…)`; for no values, NULL, which equals nothing."""
    return Sql(", ".join(map(literal, values)) or NULL)


def sql_texts(values: Sequence[str]) -> Sql:
    """Return the list for `IN (…)` of texts, in a fraction of the time, as texts hardly ever need escaping."""
    joined = "','".join(values)
    if not values or "\\" in joined or joined.count("'") != 2 * len(values) - 2:
        return sql_list(values)
    return Sql(f"'{joined}'")


def sql_row(values: Iterable[object]) -> Sql:
    """Return one row for `VALUES`."""
    return Sql("(" + ",".join(map(literal, values)) + ")")


def sql_rows(rows: Iterable[Iterable[object]]) -> Sql:
    """Return the rows for `VALUES`."""
    return Sql(", ".join(map(sql_row, rows)))


class StatementTemplates:
    """Statement templates for one table prefix, each rendered once."""

    def __init__(self, tables: str) -> None:
        self._tables = tables
        self._parts: dict[str, list[str]] = {}

    def fill(self, template: str, values: Mapping[str, object]) -> str:
        """Fill values into a template; return the statement."""
        parts = self._parts.get(template)
        if parts is None:
            # Text and names alternate.
            parts = self._parts[template] = _PARAMETER.split(MYSQL.render(template, self._tables).strip())
        if len(parts) == 1:
            return parts[0]
        pieces = parts.copy()
        pieces[1::2] = [literal(values[name]) for name in parts[1::2]]
        return "".join(pieces)


_VALUES = re.compile(r"VALUES\s*(\(.*?\))", re.DOTALL)

#: Maximum number of rows in one INSERT, because a statement has to fit into a packet.
_ROWS = 1000

_NOTES = """
INSERT INTO perdure_events (run_id, at, kind, actor, data)
VALUES :rows
"""


class MysqlTransaction(ServerTransactionLog):
    """A `Transaction` on MySQL or MariaDB. Without `locking`, reads lock no rows."""

    def __init__(
        self,
        connection: MysqlConnection,
        templates: StatementTemplates,
        clock: ServerClock,
        actor: str,
        audit: Audit,
        *,
        locking: bool,
        has_observers: bool = False,
    ) -> None:
        super().__init__(clock, actor, audit, has_observers=has_observers)
        self.connection = connection
        self.epoch = connection.epoch
        self._templates = templates
        self._locking = locking
        self._queued: list[str] = []
        #: True: no written row can exist, except from an earlier attempt of the same request.
        self.optimistic = False

    async def execute(self, sql: str, params: Params) -> int:
        """Run one statement; return how many rows it found or inserted."""
        [answer] = await self.send(self._templates.fill(sql, params))
        return answer.count

    async def execute_many(self, sql: str, rows: Sequence[Params]) -> int:
        """Run one statement for each row of parameters, in one packet; return how many rows it found or inserted."""
        if not rows:
            return 0
        values = _VALUES.search(sql)
        if values is None:
            texts = [self._templates.fill(sql, row) for row in rows]
        else:
            texts = [
                self._templates.fill(
                    f"{sql[: values.start()]}VALUES :all_rows{sql[values.end() :]}",
                    {"all_rows": Sql(", ".join(self._templates.fill(values[1], row) for row in rows[at : at + _ROWS]))},
                )
                for at in range(0, len(rows), _ROWS)
            ]
        return sum(answer.count for answer in await self.send(*texts))

    async def fetch(self, sql: str, params: Params) -> list[Row]:
        """Run a query."""
        if "{for_update}" in sql:
            # The query may wait for locks, so the time is read anew afterwards.
            self.locked()
            if not self._locking:
                sql = sql.replace("{for_update}", "")
        [answer] = await self.send(self._templates.fill(sql, params))
        return list(answer.rows)

    def fill(self, template: str, **values: object) -> str:
        """Fill a template that is written for MySQL and MariaDB."""
        return self._templates.fill(template, values)

    def enqueue(self, *statements: str) -> None:
        """Queue statements whose results are not needed; they are sent before the next ones."""
        self._queued += statements

    def insert(self, template: str, rows: Sequence[Sequence[object]], **values: object) -> None:
        """Queue an INSERT of many rows; the template has `VALUES :rows`."""
        self.insert_sql_rows(template, [sql_row(row) for row in rows], **values)

    def insert_sql_rows(self, template: str, rows: Sequence[str], **values: object) -> None:
        """Queue an INSERT of rows that are SQL already."""
        for at in range(0, len(rows), _ROWS):
            self.enqueue(self.fill(template, rows=Sql(", ".join(rows[at : at + _ROWS])), **values))

    async def send(self, *statements: str) -> list[MysqlResult]:
        """Execute statements; return their results. An optimistic transaction raises `RecordsExist`."""
        queued, self._queued = self._queued, []
        if not queued and not statements:
            return []
        try:
            answers = await self.connection.send([*queued, *statements])
        except AlreadyThere as error:
            if self.optimistic:
                raise RecordsExist from error
            raise
        return answers[len(queued) :]

    def begin(self) -> None:
        """Begin the transaction with the next statement."""
        self.connection.in_transaction = True
        self.enqueue("BEGIN")

    def write_notes(self) -> None:
        """Queue the INSERT of the audit events."""
        self.insert(_NOTES, self._take_lines())

    async def commit(self) -> None:
        """Send what is queued, and commit."""
        await self.send("COMMIT")
        self.connection.in_transaction = False
