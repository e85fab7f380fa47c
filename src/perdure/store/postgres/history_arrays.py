"""History rows as arrays, which is how many rows travel in one statement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

HISTORY = {
    "run_id": "text", "seq": "bigint", "token": "bigint", "kind": "text", "location": "text", "payload": "text",
    "failed": "smallint", "at": "bigint", "started_at": "bigint", "digest": "text", "attempts": "bigint",
    "retry_at": "bigint", "inbox_seq": "bigint", "run_attempt": "bigint",
}  # fmt: skip


def given(columns: Mapping[str, str], first: int) -> str:
    """Arrays, from a numbered parameter on, as a table called `given`."""
    parameters = ", ".join(f"${place}::{kind}[]" for place, kind in enumerate(columns.values(), first))
    return f"unnest({parameters}) AS given ({', '.join(columns)})"


def arrays(rows: Sequence[Sequence[Any]], count: int) -> list[list[Any]]:
    """Rows of so many columns as columns."""
    return [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in range(count)]
