"""Plain SQL as an interface: statements for producers, and for workers in other languages.

Each is a file for each database, printed by `perdure sql` and described in `docs/reference/sql.md`. A file has a version, raised
when its parameters or its answer change; others may change with any release, so that they are read from here and not copied.

On MySQL and MariaDB a file reads tables with `SELECT ... INTO @name`, never with `SET @name = (SELECT ...)`: InnoDB locks each row that
a subquery of SET reads, on every level of isolation, and two claims that have read the same rows then wait for each other.
"""

from __future__ import annotations

import re
from importlib import resources

from msgspec import Struct

from perdure.errors import UsageError
from perdure.store.sql.dialect import DEFAULT_PREFIX, Dialect

#: In the order in which people need them.
NAMES = ("insert", "query", "cancel", "register", "claim", "heartbeat", "complete", "fail", "release")

_HEAD = re.compile(r"-- (\w+), version (\d+): ")


class Statement(Struct, frozen=True, kw_only=True):
    """One file: several statements where the database needs a transaction for it."""

    name: str
    version: int
    #: With the comment that says what goes in and what comes out.
    text: str

    @property
    def parts(self) -> list[str]:
        """Its single statements, in order; the answer is that of the last one that gives rows."""
        bare = "\n".join(line for line in self.text.splitlines() if not line.startswith("--"))
        return [part.strip() for part in f"{bare}\n".split(";\n") if part.strip()]


def statement(dialect: Dialect, name: str, tables: str = DEFAULT_PREFIX) -> Statement:
    """One of `NAMES`, for a database; `tables` is how the names of its tables begin. Raises `UsageError`."""
    if name not in NAMES:
        raise UsageError(f"there is no statement {name!r}; there are {', '.join(NAMES)}")
    file = resources.files("perdure.store") / "plain_sql" / dialect.name / f"{name}.sql"
    text = file.read_text(encoding="utf-8")
    head = _HEAD.match(text)
    assert head is not None
    return Statement(name=name, version=int(head[2]), text=dialect.render(text, tables))
