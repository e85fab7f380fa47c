"""Values as SQL text, and templates that are filled with them.

Many rows travel in one statement, and several statements in one packet, neither of which the driver's parameters allow. A
template has `:name` where a value goes; what was filled in is never looked at again, so nothing in a value can become SQL.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from perdure.store.mysql.dialect import MYSQL

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


def listed(values: Iterable[object]) -> Sql:
    """What stands between the parentheses of `IN (…)`; of no values, something that nothing equals."""
    return Sql(", ".join(map(literal, values)) or NULL)


def texts(values: Sequence[str]) -> Sql:
    """The same of texts, in a fraction of the time: almost never is there anything to escape in one of many."""
    joined = "','".join(values)
    if not values or "\\" in joined or joined.count("'") != 2 * len(values) - 2:
        return listed(values)
    return Sql(f"'{joined}'")


def row_of(values: Iterable[object]) -> Sql:
    """One of the rows that follow `VALUES`."""
    return Sql("(" + ",".join(map(literal, values)) + ")")


def tuples(rows: Iterable[Iterable[object]]) -> Sql:
    """What follows `VALUES`."""
    return Sql(", ".join(map(row_of, rows)))


class Templates:
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
