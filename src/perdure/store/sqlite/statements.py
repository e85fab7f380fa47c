"""Statements as SQLite takes them fastest: parameters by position, and many rows in one INSERT.

SQLite looks a parameter's name up by walking through all names before it, and opens every index of a table once a statement: that
is a third of what it costs to insert a run, or a record.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

from msgspec import Struct

from perdure.store.user_connections import parameter_styles

#: How many rows go into one INSERT. Twice as many gain little more.
CROWD = 32

_VALUES = re.compile(r"\bVALUES\s*(\(\s*\?(?:\s*,\s*\?)*\s*\))")


class Statement(Struct, frozen=True):
    """A statement, ready to be executed."""

    text: str
    #: Puts named parameters in their order; None: they are in order.
    ordered: Callable[[Any], Sequence[Any]] | None
    #: The same for `CROWD` rows; None where it is no INSERT of values.
    crowd: str | None


def prepare(sql: str) -> Statement:
    """A statement with `:name` or `?` parameters."""
    found = parameter_styles.render(sql, "qmark")
    return Statement(found.text, _in_order(found.names or ()), crowded(found.text))


def crowded(text: str) -> str | None:
    """The INSERT of one row's values as one of `CROWD` rows."""
    found = _VALUES.search(text)
    if found is None or not text.lstrip().startswith("INSERT"):
        return None
    return f"{text[: found.start(1)]}{', '.join([found[1]] * CROWD)}{text[found.end(1) :]}"


def _in_order(names: Sequence[str]) -> Callable[[Any], Sequence[Any]] | None:
    if len(names) > 1:
        return itemgetter(*names)
    return (lambda params: (params[names[0]],)) if names else None
