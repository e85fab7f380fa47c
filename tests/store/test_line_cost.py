"""What looking at gates costs: as much whether a few stand in line there or very many, also where the planner knows how many."""

from __future__ import annotations

from typing import Any

from perdure.core.model import FAR
from perdure.store import SqlStore, due, lines
from perdure.store.dialect import Transaction
from perdure.testing.conformance.harness import START

STANDING = 4_000
WAITED_AT = {"type0": "suite.a.v1", "type1": "suite.b.v1", "until": FAR - 1, "limit": 1}
AHEAD = {"gate": "long", "type": "suite.a.v1", "priority": 100, "turn": 15}
HEADS = {"gate0": "long", "type0": "suite.a.v1", "limit": 100}

LINED = due._LINED.replace("#", "0")
STATEMENTS: dict[str, tuple[str, dict[str, Any], str]] = {
    "gates that are due": (
        due._BY_DUE.replace("{lined}", f"{LINED} UNION ALL {LINED.replace('0', '1')}"),
        WAITED_AT,
        "perdure_lines_by_priority",
    ),
    "whether anybody waits": (due._WAITED_AT.replace("{names}", ":name"), {"name": "long"}, "perdure_lines_by_priority"),
    "how many are before": (lines._AHEAD, AHEAD, "perdure_lines_by_priority"),
    "who is next": (
        lines._HEADS.replace("#", "0").replace("{queues}", "AND queue IN ('default')"), HEADS, "perdure_lines_by_priority",
    ),
    "of which types": (LINED, {"type0": "suite.a.v1"}, "perdure_lines_by_type"),
}  # fmt: skip
ANALYZE = {"sqlite": "ANALYZE", "postgres": "ANALYZE perdure_lines", "mysql": "ANALYZE TABLE perdure_lines"}


async def _fill(harness: Any) -> None:
    """A gate at which very many stand, of two types, and what the database makes of it."""
    await harness.execute(f"INSERT INTO perdure_gates (name, due_at) VALUES ('long', {START})")
    columns = "run_id, gate, queue, type, priority, turn, gating, since"
    for first in range(0, STANDING, 2000):
        rows = ", ".join(
            f"('r{number:06}', 'long', 'default', 'suite.{'ab'[number % 2]}.v1', 100, {number}, '{{}}', {START})"
            for number in range(first, first + 2000)
        )
        await harness.execute(f"INSERT INTO perdure_lines ({columns}) VALUES {rows}")
    await harness.execute(ANALYZE[next(kind for kind in ANALYZE if harness.url.startswith(kind))])


async def _plan(store: SqlStore, sql: str, params: dict[str, Any]) -> str:
    prefix = "EXPLAIN QUERY PLAN " if store.exclusive else "EXPLAIN "

    async def ask(tx: Transaction) -> str:
        return "\n".join(str(row) for row in await tx.fetch(prefix + sql, params))

    return await store._read("explain", ask)


async def test_lines_are_looked_at_along_an_index_however_long_they_are(harness: Any) -> None:
    store = await harness.open()
    await _fill(harness)
    for name, (sql, params, index) in STATEMENTS.items():
        plan = await _plan(store, sql, params)
        assert index in plan, (name, plan)
        for everything in ("Seq Scan on perdure_lines", "Bitmap", "SCAN l", "SCAN perdure_lines", "filesort"):
            assert everything not in plan, (name, plan)
