"""Plain SQL as an interface: statements for producers, and for workers in other languages.

Each statement is one file per database. `perdure sql` prints it and `docs/reference/sql.md` describes it. A file has a
version, raised when its parameters or its answer change. The text may change with any release, so read the statements
from here instead of copying them.

On MySQL and MariaDB a file reads tables with `SELECT ... INTO @name`, never with `SET @name = (SELECT ...)`: InnoDB
locks each row that a subquery of SET reads, on every isolation level, and two claims that have read the same rows then
wait for each other.
"""

from __future__ import annotations

import re
from importlib import resources

from msgspec import Struct

from perdure.errors import UsageError
from perdure.store.sql.dialect import DEFAULT_PREFIX, Dialect

#: Names of all statements, in the order in which users need them.
NAMES = ("insert", "query", "cancel", "register", "claim", "heartbeat", "complete", "fail", "release")

_HEAD = re.compile(r"-- (\w+), version (\d+): ")


class PlainStatement(Struct, frozen=True, kw_only=True):
    """One .sql file: a single statement, or several where the database needs a transaction for it."""

    name: str
    version: int
    #: Includes the comment that describes the parameters and the answer.
    text: str

    @property
    def parts(self) -> list[str]:
        """The single statements in order; the answer is that of the last one that returns rows."""
        bare = "\n".join(line for line in self.text.splitlines() if not line.startswith("--"))
        return [part.strip() for part in f"{bare}\n".split(";\n") if part.strip()]


def statement(dialect: Dialect, name: str, tables: str = DEFAULT_PREFIX) -> PlainStatement:
    """Return one of `NAMES` for a database; `tables` is the prefix of its table names. Raises `UsageError`."""
    if name not in NAMES:
        raise UsageError(f"there is no statement {name!r}; there are {', '.join(NAMES)}")
    file = resources.files("perdure.store") / "plain_sql" / dialect.name / f"{name}.sql"
    text = file.read_text(encoding="utf-8")
    head = _HEAD.match(text)
    assert head is not None
    return PlainStatement(name=name, version=int(head[2]), text=dialect.render(text, tables))
