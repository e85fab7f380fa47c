"""A transaction on MySQL or MariaDB, as shared verbs see it.

Whatever needs no answer waits and travels with the next question, or with the COMMIT: a round trip costs more than most
statements. A statement for many rows is one INSERT of many rows, or many statements in one packet.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from perdure.core.audit import Audit
from perdure.store.mysql.dialect import MYSQL
from perdure.store.mysql.driver import AlreadyThere, MysqlConnection, MysqlResult
from perdure.store.server.clock import ServerClock
from perdure.store.server.commit_batch import RecordsExist
from perdure.store.sql.audit import ServerTransactionLog
from perdure.store.sql.dialect import Params, Row

_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]\w*)")


class Sql(str):
    """Text that is SQL already."""

    __slots__ = ()


NULL = Sql("NULL")


def literal(value: object) -> str:
    """A value. In UTF-8, with backslashes as escapes (both set on every session), only these two characters matter."""
    # The usual kinds first, and nothing called that need not be: a run with one step has 47 of them.
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
    raise TypeError(f"{value!r} of type {type(value).__name__} cannot be stored in a column.")


def _escaped(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def sql_list(values: Iterable[object]) -> Sql:
    """What stands between the parentheses of `IN (…)`; of no values, something that nothing equals."""
    return Sql(", ".join(map(literal, values)) or NULL)


def sql_texts(values: Sequence[str]) -> Sql:
    """The same of texts, in a fraction of the time: almost never is there anything to escape in one of many."""
    joined = "','".join(values)
    if not values or "\\" in joined or joined.count("'") != 2 * len(values) - 2:
        return sql_list(values)
    return Sql(f"'{joined}'")


def sql_row(values: Iterable[object]) -> Sql:
    """One of the rows that follow `VALUES`."""
    return Sql("(" + ",".join(map(literal, values)) + ")")


def sql_rows(rows: Iterable[Iterable[object]]) -> Sql:
    """What follows `VALUES`."""
    return Sql(", ".join(map(sql_row, rows)))


class StatementTemplates:
    """Statements for tables with a certain prefix, each rendered once."""

    def __init__(self, tables: str) -> None:
        self._tables = tables
        self._parts: dict[str, list[str]] = {}

    def fill(self, template: str, values: Mapping[str, object]) -> str:
        """The statement with these values."""
        parts = self._parts.get(template)
        if parts is None:
            # Text and names in turn.
            parts = self._parts[template] = _PARAMETER.split(MYSQL.render(template, self._tables).strip())
        if len(parts) == 1:
            return parts[0]
        pieces = parts.copy()
        pieces[1::2] = [literal(values[name]) for name in parts[1::2]]
        return "".join(pieces)


_VALUES = re.compile(r"VALUES\s*(\(.*?\))", re.DOTALL)

#: How many rows of an INSERT go into one statement, and how much text; the server wants no more than a packet at a time.
_ROWS = 1000

_NOTES = """
INSERT INTO perdure_events (run_id, at, kind, actor, data)
VALUES :rows
"""


class MysqlTransaction(ServerTransactionLog):
    """See `perdure.store.sql.dialect.Transaction`. Without `locking`, rows are only looked at."""

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
        self._waiting: list[str] = []
        #: Whether nothing that is written can be there already, unless it was written before by the same request.
        self.optimistic = False

    async def execute(self, sql: str, params: Params) -> int:
        """Run one statement; how many rows it found or made."""
        [answer] = await self.send(self._templates.fill(sql, params))
        return answer.count

    async def execute_many(self, sql: str, rows: Sequence[Params]) -> int:
        """Run one statement for each of the rows, all at once."""
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
            # It may wait for locks; the time is what it is afterwards.
            self.locked()
            if not self._locking:
                sql = sql.replace("{for_update}", "")
        [answer] = await self.send(self._templates.fill(sql, params))
        return list(answer.rows)

    def text(self, template: str, **values: object) -> str:
        """A statement of this database only."""
        return self._templates.fill(template, values)

    def later(self, *statements: str) -> None:
        """Have statements executed whose answers nobody needs, before the next that are sent."""
        self._waiting += statements

    def insert(self, template: str, rows: Sequence[Sequence[object]], **values: object) -> None:
        """Have many rows inserted later; the template says `VALUES :rows`."""
        self.insert_written(template, [sql_row(row) for row in rows], **values)

    def insert_written(self, template: str, rows: Sequence[str], **values: object) -> None:
        """The same with rows that are SQL already."""
        for at in range(0, len(rows), _ROWS):
            self.later(self.text(template, rows=Sql(", ".join(rows[at : at + _ROWS])), **values))

    async def send(self, *statements: str) -> list[MysqlResult]:
        """Execute statements; their answers. An optimistic transaction raises `RecordsExist`."""
        waiting, self._waiting = self._waiting, []
        if not waiting and not statements:
            return []
        try:
            answers = await self.connection.send([*waiting, *statements])
        except AlreadyThere as error:
            if self.optimistic:
                raise RecordsExist from error
            raise
        return answers[len(waiting) :]

    def begin(self) -> None:
        """Begin with the next statement."""
        self.connection.in_transaction = True
        self.later("BEGIN")

    def write_notes(self) -> None:
        """Put the noted lines into the transaction."""
        self.insert(_NOTES, self._take_lines())

    async def commit(self) -> None:
        """Make it durable."""
        await self.send("COMMIT")
        self.connection.in_transaction = False
