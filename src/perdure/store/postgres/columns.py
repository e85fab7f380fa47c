"""Columns of many rows, each as one text that the server takes apart.

The driver spends four tenths of a microsecond on every item of an array, which for the columns of a step adds up to more than
all the rest of writing it; joining and splitting text costs next to nothing. The characters in between occur neither in JSON
nor in any sensible name. `Unjoinable` says that one of them does, after all; then it has to be arrays.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

HISTORY = {
    "run_id": "text", "seq": "bigint", "token": "bigint", "kind": "text", "location": "text", "payload": "text",
    "failed": "smallint", "at": "bigint", "started_at": "bigint", "digest": "text", "attempts": "bigint",
    "retry_at": "bigint", "inbox_seq": "bigint", "run_attempt": "bigint",
}  # fmt: skip


def unnest_arrays(columns: Mapping[str, str], first: int) -> str:
    """Arrays, from a numbered parameter on, as a table called `given`."""
    parameters = ", ".join(f"${place}::{kind}[]" for place, kind in enumerate(columns.values(), first))
    return f"unnest({parameters}) AS given ({', '.join(columns)})"


def to_arrays(rows: Sequence[Sequence[Any]], count: int) -> list[list[Any]]:
    """Rows of so many columns as columns."""
    return [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in range(count)]


#: Between two items, and instead of an item that is NULL.
_BETWEEN, _NULL = "\x1f", "\x1e"


class Unjoinable(Exception):
    """An item has one of the characters in it that stand between items."""


def unnest_texts(columns: Mapping[str, str], first: int, place: str | None = None, *, name: str = "given") -> str:
    """Columns, from a numbered parameter on, as a table; perhaps with one more for the place, from 1 on."""
    arrays = ", ".join(_split(number, kind) for number, kind in enumerate(columns.values(), first))
    if place is None:
        return f"unnest({arrays}) AS {name} ({', '.join(columns)})"
    return f"unnest({arrays}) WITH ORDINALITY AS {name} ({', '.join(columns)}, {place})"


def _split(number: int, kind: str) -> str:
    text = f"string_to_array(${number}::text, E'\\x1f', E'\\x1e')"
    return text if kind == "text" else f"{text}::{kind}[]"


def join_texts(items: Sequence[str | None]) -> str:
    """A column of texts. An empty one arrives as NULL. Raises `Unjoinable`."""
    there = list(filter(None, items))
    text = _BETWEEN.join(there if len(there) == len(items) else [item or _NULL for item in items])
    if items and (text.count(_BETWEEN) + 1 != len(items) or text.count(_NULL) + len(there) != len(items)):
        raise Unjoinable
    return text


def join_numbers(items: Iterable[int]) -> str:
    """A column of numbers."""
    return _BETWEEN.join(map(str, items))
