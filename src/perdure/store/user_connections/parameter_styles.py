"""The parameter styles of database libraries.

The shared SQL has `:name` parameters. Each library wants them its own way; the names and meanings of the styles are those of
PEP 249, with `numeric_dollar` for `$1`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from perdure.errors import UsageError

_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]\w*)")
_VALUES = re.compile(r"VALUES\s*(\(.*?\))", re.DOTALL)

#: Parameters of one statement at the most; every database takes more.
_MOST = 2000


class Statement(Struct, frozen=True):
    """A statement as a library wants it."""

    text: str
    #: In the order in which values are to be given; None where they are given by name.
    names: tuple[str, ...] | None

    def bind(self, values: Mapping[str, Any]) -> Any:
        """The parameters as the library wants them."""
        return dict(values) if self.names is None else tuple(values[name] for name in self.names)


def render(sql: str, style: str) -> Statement:
    """A statement with `:name` parameters in another style. Raises `UsageError` for one that nobody knows."""
    names = tuple(_PARAMETER.findall(sql))
    match style:
        case "named":
            return Statement(sql, None)
        case "pyformat":
            return Statement(_PARAMETER.sub(r"%(\1)s", sql.replace("%", "%%")), None)
        case "format":
            return Statement(_PARAMETER.sub("%s", sql.replace("%", "%%")), names)
        case "qmark":
            return Statement(_PARAMETER.sub("?", sql), names)
        case "numeric_dollar":
            places = {name: f"${place}" for place, name in enumerate(dict.fromkeys(names), 1)}
            return Statement(_PARAMETER.sub(lambda found: places[found[1]], sql), tuple(places))
        case _:
            raise UsageError(f"A library with the parameter style {style!r} cannot be used with Perdure.")


def in_one(sql: str, rows: Sequence[Mapping[str, Any]]) -> tuple[str, dict[str, Any], int]:
    """An INSERT of one row as one of the first of these, with its parameters, and how many that are."""
    taken = rows[: max(1, _MOST // len(rows[0]))]
    found = _VALUES.search(sql)
    assert found is not None, "not an INSERT of values"
    lists = (_PARAMETER.sub(rf":\1_{number}", found[1]) for number in range(len(taken)))
    text = f"{sql[: found.start(1)]}{', '.join(lists)}{sql[found.end(1) :]}"
    return text, {f"{name}_{number}": row[name] for number, row in enumerate(taken) for name in row}, len(taken)
