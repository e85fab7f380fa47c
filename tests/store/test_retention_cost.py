"""What looking for the dead and the old costs: each has an index, and what completed is passed over."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.core.model.dead_letter import DeadLetterFilter
from perdure.core.time.duration import NEVER
from perdure.store import SqlStore
from perdure.store.sql.dialect import Transaction
from perdure.store.sql.runs import dead_letters, pruning
from perdure.testing.conformance.harness import START, Harness

DONE = 3000
ENDED = {"first": START + 1_000, "second": -1, "third": "", "before": START + 1_010, "limit": 100}
DELETED = {"first": 0, "third": "", "before": NEVER, "limit": 100}


def _page() -> tuple[str, dict[str, Any]]:
    where, params = dead_letters._where(DeadLetterFilter(type="suite.%"), None)
    return dead_letters._PAGE.replace("{where}", where), {**params, "limit": 50}


STATEMENTS = {
    "dead letters": (*_page(), "perdure_runs_by_status"),
    "what ended": (pruning._ENDED, ENDED, "perdure_runs_by_end"),
    "what was deleted": (pruning._DELETED, DELETED, "perdure_runs_deleted"),
    "children": (
        pruning._CHILDREN.replace("{chosen}", ":a, :b"),
        {"a": "d00001", "b": "d00002", "limit": 100},
        "perdure_runs_by_parent",
    ),
}


def _row(number: int) -> str:
    failed = number % 500 == 0
    status, name = ("failed", f"f{number:05}") if failed else ("completed", f"d{number:05}")
    parent = f"'d{number % 20:05}'" if number % 3 == 0 else "NULL"
    deleted = START if number % 700 == 0 else 0
    return f"('{name}', '{status}', 'suite.run.v1', {START + number}, {START + number}, {deleted}, {parent}, '1')"


async def _fill(harness: Harness) -> None:
    """Many that completed, a few that failed, and some that have a parent or were deleted."""
    columns = "id, status, type, created_at, finished_at, deleted_at, parent_id, output"
    for first in range(0, DONE, 1000):
        rows = ", ".join(_row(number) for number in range(first, first + 1000))
        await harness.execute(f"INSERT INTO perdure_runs ({columns}) VALUES {rows}")


async def _plan(store: SqlStore, sql: str, params: dict[str, Any]) -> str:
    prefix = "EXPLAIN QUERY PLAN " if store.exclusive else "EXPLAIN "

    async def ask(tx: Transaction) -> str:
        return "\n".join(str(row) for row in await tx.fetch(prefix + sql, params))

    return await store._read("explain", ask)


@pytest.mark.plans
@pytest.mark.parametrize("name", STATEMENTS)
async def test_the_dead_and_the_old_are_found_by_an_index(harness: Any, name: str) -> None:
    store = await harness.open()
    await _fill(harness)
    sql, params, index = STATEMENTS[name]
    plan = await _plan(store, sql, params)
    on_mysql = harness.url.startswith("mysql")
    assert (index.replace("by_end", "to_expire") if on_mysql else index) in plan, plan
    assert "Seq Scan on perdure_runs" not in plan
    assert "SCAN perdure_runs\n" not in plan
