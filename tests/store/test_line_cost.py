"""What looking at gates costs: as much whether a few stand in line there or very many, also where the planner knows how
many."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.core.time.duration import NEVER
from perdure.store import SqlStore
from perdure.store.sql.dialect import Transaction
from perdure.store.sql.limits import gates, waitlist
from perdure.testing.conformance.harness import START

STANDING = 4_000
WAITED_AT = {"type0": "suite.a.v1", "type1": "suite.b.v1", "until": NEVER - 1, "limit": 1}
HEADS = {"gate0": "long", "type0": "suite.a.v1", "limit": 100}

LINED = gates._LINED.replace("#", "0")
STATEMENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "gates that are due": (gates._BY_DUE.replace("{lined}", f"{LINED} UNION ALL {LINED.replace('0', '1')}"), WAITED_AT),
    "whether anybody waits": (gates._WAITED_AT.replace("{names}", ":name"), {"name": "long"}),
    "who is next": (waitlist._HEADS.replace("#", "0").replace("{queues}", "AND queue IN ('default')"), HEADS),
    "of which types": (LINED, {"type0": "suite.a.v1"}),
}
ANALYZE = {"sqlite": "ANALYZE", "postgres": "ANALYZE perdure_lines", "mysql": "ANALYZE TABLE perdure_lines"}

#: How plans say that a whole line is read, or sorted.
EVERYTHING = (
    "Seq Scan on perdure_lines", "Bitmap", "Sort Key: l", "Sort Key: priority", "Sort Key: type",
    "SCAN l", "SCAN perdure_lines", "TEMP B-TREE", "filesort",
)  # fmt: skip


async def _fill(harness: Any, gate: str, types: str) -> None:
    """A gate at which very many stand."""
    await harness.execute(f"INSERT INTO perdure_gates (name, due_at) VALUES ('{gate}', {START})")
    columns = "run_id, gate, queue, type, priority, turn, gating, since"
    for first in range(0, STANDING, 2000):
        rows = ", ".join(
            f"('{gate}{number:06}', '{gate}', 'default', 'suite.{types[number % 2]}.v1', "
            f"100, {number}, '{{}}', {START})"
            for number in range(first, first + 2000)
        )
        await harness.execute(f"INSERT INTO perdure_lines ({columns}) VALUES {rows}")


async def _analyze(harness: Any) -> None:
    """Let the database know what is there now."""
    await harness.execute(ANALYZE[next(kind for kind in ANALYZE if harness.url.startswith(kind))])


async def _plan(store: SqlStore, sql: str, params: dict[str, Any]) -> str:
    prefix = "EXPLAIN QUERY PLAN " if store.exclusive else "EXPLAIN "

    async def ask(tx: Transaction) -> str:
        return "\n".join(str(row) for row in await tx.fetch(prefix + sql, params))

    return await store._read("explain", ask)


@pytest.mark.plans
@pytest.mark.parametrize("known", [False, True], ids=["not known yet", "known"])
async def test_lines_are_looked_at_along_an_index_however_long_they_are(harness: Any, known: bool) -> None:
    store = await harness.open()
    # What the database knows is how it was before.
    await _fill(harness, "other", "yz")
    await _analyze(harness)
    await _fill(harness, "long", "ab")
    if known:
        await _analyze(harness)
    for name, (sql, params) in STATEMENTS.items():
        plan = await _plan(store, sql, params)
        assert "perdure_lines_by_" in plan, (name, plan)
        for everything in EVERYTHING:
            assert everything not in plan, (name, plan)
