"""Cost of a page and of a count: every statement has an index, whatever is asked for.

`PERDURE_PROVE=1` fills a million runs and compares the time of each first page with that of a lookup by id.
"""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest

from perdure.core.model.attributes import make_conditions
from perdure.core.model.run import CountBy, RunFilter, Status
from perdure.store import SqlStore
from perdure.store.sql.dialect import SQLITE, Params, Row, Transaction
from perdure.store.sql.listing import FEW, count_runs, list_runs, residual_terms, sources_of
from perdure.testing.conformance.harness import START

PROVE = bool(os.environ.get("PERDURE_PROVE"))
RUNS = 1_000_000 if PROVE else 20_000

#: Filters by name; the million has about a thousand of each customer, half of them large.
FILTERS: dict[str, dict[str, Any]] = {
    "all": {},
    "failed": {"status": (Status.FAILED,)},
    "failed or blocked": {"status": (Status.FAILED, Status.BLOCKED)},
    "running": {"status": (Status.RUNNING,)},
    "waiting": {"status": (Status.WAITING,)},
    "pending": {"status": (Status.PENDING,)},
    "completed": {"status": (Status.COMPLETED,)},
    "type": {"type": "fill.common.v1"},
    "queue": {"queue": "default"},
    "children": {"parent_id": "r0000001"},
    "roots": {"roots": True},
    "few ids": {"id_prefix": "r00012"},
    "many ids": {"id_prefix": "r"},
    "schedule": {"schedule": "nightly"},
    "error": {"error": "declined"},
    "error of a status and type": {"error": "declined", "status": (Status.FAILED,), "type": "fill.common.v1"},
    "deleted": {"deleted": True},
    "times": {"created_after": START + 100, "created_before": START + 5000},
    "customer": {"attributes": {"customer": "c0007"}},
    "customers": {"attributes": {"customer": ("in", ["c0007", "c0008", "none"])}},
    "customers by prefix": {"attributes": {"customer": ("prefix", "c000")}},
    "one customer by prefix": {"attributes": {"customer": ("prefix", "c0007")}},
    "many amounts": {"attributes": {"amount": (">=", 500)}},
    "few amounts": {"attributes": {"amount": ("<", 0)}},
    "range of amounts": {"attributes": {"amount": [(">=", 10), ("<", 11)]}},
    "flag": {"attributes": {"vip": True}},
    "time": {"attributes": {"due": (">", datetime(2026, 1, 1, tzinfo=UTC))}},
    "customer and amount": {"attributes": {"customer": "c0007", "amount": (">=", 500)}},
    "customer and status": {"attributes": {"customer": "c0007"}, "status": (Status.FAILED,)},
    "amount and type": {"attributes": {"amount": (">=", 500)}, "type": "fill.common.v1", "roots": True},
    "customer and id": {"attributes": {"customer": "c0007"}, "id_prefix": "r00012"},
    "customer and times": {"attributes": {"customer": "c0007"}, "created_after": START + 1000},
}
COUNTS: dict[str, CountBy] = {
    "all": CountBy(),
    "status": CountBy("status"),
    "type": CountBy("type"),
    "queue": CountBy("queue"),
    "customer": CountBy(attribute="customer"),
}

_NUMBERS = {
    "sqlite": "WITH RECURSIVE n (i) AS (SELECT {first} UNION ALL SELECT i + 1 FROM n WHERE i < {last}) ",
    "postgres": "WITH n (i) AS (SELECT * FROM generate_series({first}, {last})) ",
}
_PADDED = {
    "sqlite": "printf('%0{width}d', {number})",
    "postgres": "lpad(({number})::text, {width}, '0')",
    "mysql": "LPAD({number}, {width}, '0')",
}
_MYSQL_NUMBERS = (
    "(SELECT {first} + a.d + 10 * b.d + 100 * c.d + 1000 * e.d AS i FROM "
    + ", ".join(f"(SELECT 0 AS d {' '.join(f'UNION ALL SELECT {d}' for d in range(1, 10))}) {name}" for name in "abce")
    + ") n"
)
_ERROR = '\'{"type":"shop.Declined","message":"the card was declined"}\''
_RUNS = (
    "SELECT CONCAT_ID, CASE WHEN i % 1000 = 7 THEN 'failed' WHEN i % 5000 = 8 THEN 'running' WHEN i % 5000 = 9 "
    "THEN 'waiting' ELSE 'completed' END, CASE WHEN i % 20 = 3 THEN 'fill.rare.v1' ELSE 'fill.common.v1' END, "
    f"'default', {START} + i, CASE WHEN i % 5000 IN (8, 9) THEN 0 ELSE {START} + i + 5 END, "
    f"CASE WHEN i % 4000 = 11 THEN {START} ELSE 0 END, CASE WHEN i % 10000 = 12 THEN 'r0000001' END, "
    f"CASE WHEN i % 1000 = 7 THEN {_ERROR} END, '1' FROM n"
)
_COLUMNS = "id, status, type, queue, created_at, finished_at, deleted_at, parent_id, error, output"


def _statements(kind: str, first: int, last: int) -> list[str]:
    def padded(number: str, width: int) -> str:
        return _PADDED[kind].format(number=number, width=width)

    def joined(*parts: str) -> str:
        return f"CONCAT({', '.join(parts)})" if kind == "mysql" else " || ".join(parts)

    run_id = joined("'r'", padded("i", 7))
    customer = joined("'c'", padded("i % 1000", 4))
    numbers = "" if kind == "mysql" else _NUMBERS[kind].format(first=first, last=last)
    source = _MYSQL_NUMBERS.format(first=first) if kind == "mysql" else "n"
    into = f"INSERT INTO perdure_attributes (run_id, name, kind, {{}}, created_at) {numbers}SELECT {run_id}, "
    end = f", {START} + i FROM {source}"
    whole = "SIGNED" if kind == "mysql" else "BIGINT"
    due = 1_700_000_000_000_000
    runs = _RUNS.replace("CONCAT_ID", run_id).replace("FROM n", f"FROM {source}")
    return [
        f"INSERT INTO perdure_runs ({_COLUMNS}) {numbers}{runs}",
        into.format("text_value") + f"'customer', 'text', {customer}" + end,
        into.format("number_value") + "'amount', 'integer', i % 1000" + end,
        into.format("number_value") + "'vip', 'bool', CASE WHEN i % 2 = 0 THEN 1 ELSE 0 END" + end,
        into.format("time_value") + f"'due', 'time', {due} + 1000000 * CAST(i AS {whole})" + end,
    ]  # fmt: skip


async def fill(store: SqlStore, count: int) -> None:
    """Insert runs with four attributes each, and let the database look at them."""
    kind = store._dialect.name
    part = 10_000
    for first in range(0, count, part):
        for sql in _statements(kind, first, first + part - 1):
            await store._write("fill", "test", partial(_execute, sql=sql))
    # SQLite knows nothing of its tables, as in production.
    for table in ("perdure_runs", "perdure_attributes") if kind != "sqlite" else ():
        analyze = f"ANALYZE TABLE {table}" if kind == "mysql" else f"VACUUM (ANALYZE) {table}"
        await store._read("analyze", partial(_fetch, sql=analyze))


async def _execute(tx: Transaction, sql: str) -> None:
    await tx.execute(sql, {})


async def _fetch(tx: Transaction, sql: str) -> list[Row]:
    return await tx.fetch(sql, {})


class Explained:
    """A transaction that keeps the plan of every query that it runs."""

    def __init__(self, tx: Transaction, *, exclusive: bool) -> None:
        self._tx = tx
        self._prefix = "EXPLAIN QUERY PLAN " if exclusive else "EXPLAIN "
        self.plans: list[str] = []

    async def fetch(self, sql: str, params: Params) -> list[Row]:
        plan = await self._tx.fetch(self._prefix + sql, params)
        self.plans.append("\n".join([sql, *(str(row) for row in plan)]))
        return await self._tx.fetch(sql, params)


def _wanted(filter: dict[str, Any]) -> RunFilter:
    return RunFilter(**{**filter, "attributes": make_conditions(filter.get("attributes"))})


def _reads_all(plan: str, kind: str) -> bool:
    """True if a plan reads a table from end to end, or sorts one."""
    if kind == "sqlite":
        # Rows of a subquery with a limit may be scanned.
        return any("SCAN" in line and "perdure_" in line and "USING" not in line for line in plan.splitlines()[1:]) or (
            "SCAN" in plan and "USING TEMP B-TREE" in plan and "UNION" not in plan and "GROUP BY" not in plan
        )
    if kind == "postgres":
        return "Seq Scan on perdure_" in plan or 'Seq Scan on "perdure_' in plan
    rows = [line for line in plan.splitlines()[1:] if "'ALL'" in line]
    return any("'perdure_" in line or "'r'" in line or "'a'" in line for line in rows)


@pytest.fixture
async def filled(harness: Any) -> SqlStore:
    store: SqlStore = await harness.open()
    await fill(store, RUNS)
    return store


@pytest.mark.plans
@pytest.mark.skipif(PROVE, reason="measured instead")
async def test_every_page_and_count_is_read_from_an_index(filled: SqlStore) -> None:
    dialect = filled._dialect
    read_whole: dict[str, str] = {}

    async def plans(verb: Callable[[Transaction], Awaitable[object]]) -> list[str]:
        async def explained(tx: Transaction) -> list[str]:
            watched: Any = Explained(tx, exclusive=filled.exclusive)
            await verb(watched)
            found: list[str] = watched.plans
            return found

        return await filled._read("explain", explained)

    for name, filter in FILTERS.items():
        for oldest in (False, True):
            wanted = _wanted({**filter, "oldest": oldest})
            verb = partial(list_runs, filter=wanted, limit=50, cursor=None, scan=2000, dialect=dialect)
            found = await plans(verb)
            read_whole |= {f"{name}: {plan}": name for plan in found if _reads_all(plan, dialect.name)}
            if dialect.seeks_values and name in ("range of amounts", "one customer by prefix"):
                # A range of one value is neither counted nor sorted.
                assert not [plan for plan in found if f"LIMIT {FEW + 1}" in plan]
    # PostgreSQL rightly reads all of a table as small as this one for a count; it is measured in the long form.
    for name, by in COUNTS.items() if dialect.name != "postgres" else ():
        counting = partial(count_runs, filter=RunFilter(), by=by, most=1000, dialect=dialect)
        read_whole |= {f"{name}: {plan}": name for plan in await plans(counting) if _reads_all(plan, dialect.name)}
    assert list(read_whole) == []


def test_the_conditions_of_a_range_are_not_checked_again_on_its_runs() -> None:
    wanted = _wanted({"attributes": {"amount": [(">=", 10), ("<", 11)], "customer": "c0007"}})
    [source] = [one for one in sources_of(wanted, SQLITE) if one.orders is not None]
    terms, _ = residual_terms(wanted, source.fulfilled, "r")
    # That of the customer, and that no run is deleted.
    assert [term.count("perdure_attributes") for term in terms] == [0, 1]


async def _fastest(ask: Callable[[], Awaitable[object]], times: int = 7) -> float:
    taken: list[float] = []
    for _ in range(times):
        before = time.perf_counter()
        await ask()
        taken.append(time.perf_counter() - before)
    return min(taken)


#: Databases as engines use them. Simulations alone call SQLite on their own thread, where a lookup costs half as much.
USED = ("file", "memory", "postgres", "mysql")


@pytest.mark.plans
@pytest.mark.parametrize("harness", USED, indirect=True)
@pytest.mark.skipif(not PROVE, reason="takes minutes")
async def test_the_first_page_of_a_million_takes_thirty_lookups_and_a_count_a_tenth_of_a_second(
    filled: SqlStore,
) -> None:
    lookup = await _fastest(lambda: filled.get("r0000042"), 50)
    pages: dict[str, float] = {}
    counts: dict[str, float] = {}
    for name, filter in FILTERS.items():
        wanted = _wanted(filter)
        # In turns, because other work on the machine slows down both; longer where it may have.
        first_page = partial(filled.list, wanted, 50, None, 150)
        by_id = partial(filled.get, "r0000042")
        rounds: list[tuple[float, float]] = []
        while len(rounds) < 10 or (pages[name] > 30 and len(rounds) < 60):
            rounds.append((await _fastest(by_id, 3), await _fastest(first_page, 3)))
            pages[name] = min(page for _, page in rounds) / min(one for one, _ in rounds)
    for name, by in COUNTS.items():
        counts[name] = await _fastest(partial(filled.count, RunFilter(), by, 10_000))
    for name, filter in FILTERS.items():
        counts[f"of {name}"] = await _fastest(partial(filled.count, _wanted(filter), CountBy(), 10_000))
    print(f"{filled._dialect.name}: lookup {lookup * 1e6:.0f} us")
    print({name: round(times, 1) for name, times in sorted(pages.items(), key=lambda one: -one[1])})
    print({name: f"{seconds * 1e3:.0f} ms" for name, seconds in counts.items()})
    assert {name: times for name, times in pages.items() if times > 30} == {}
    assert {name: seconds for name, seconds in counts.items() if seconds > 0.1} == {}
