"""The cost of a claim depends on what it takes, not on how many other runs are ready, of any type."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from perdure.host import Host
from perdure.store import migration_script
from perdure.store.plain_sql import statement
from perdure.store.sql.dialect import SQLITE
from tests.servers.databases import Databases
from tests.servers.schemas import Schemas
from tests.store.plain_sql.places import SECOND, OnMysql, OnPostgres, Plain

FEW, MANY = 40, 2000
#: Maximum ratio of the cost with many runs to the cost with few: index trees grow by a level.
FLAT = 1.5


def rows(each: int, now: int) -> Iterator[str]:
    """Insert ready runs of eight types, half of which match `mail.%`."""
    for type in range(8):
        kind = ("mail.t", "other.t")[type % 2]
        for number in range(each):
            yield f"('{type}-{number:06}', '{kind}{type}.v1', 100, {now - SECOND - 7 * number})"


async def fill(plain: Plain, each: int) -> None:
    """Insert a number of runs of each type."""
    for table in ("runs", "events", "registry"):
        await plain.execute(f"DELETE FROM {plain.tables}{table}")
    listed = list(rows(each, await plain.store.now()))
    for start in range(0, len(listed), 4000):
        some = ", ".join(listed[start : start + 4000])
        await plain.execute(f"INSERT INTO {plain.tables}runs (id, type, priority, wake_at) VALUES {some}")


def steps_on_sqlite(each: int) -> int:
    """Return the number of virtual machine steps that SQLite takes for a claim."""
    count = 0

    def step() -> int:
        nonlocal count
        count += 1
        return 0

    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.executescript(migration_script("sqlite://"))
        values = ", ".join(rows(each, Host().now()))
        connection.execute(f"INSERT INTO perdure_runs (id, type, priority, wake_at) VALUES {values}")
        params = {
            "worker": "w", "nonce": "n", "types": "mail.%", "queue": None, "number": 16, "lease": SECOND,
            "runtime": "node",
        }  # fmt: skip
        parts = statement(SQLITE, "claim").parts
        connection.set_progress_handler(step, 1)
        answers = [connection.execute(part, params).fetchall() for part in parts]
        connection.set_progress_handler(None, 1)
    assert max(len(answer) for answer in answers) == 16
    return count


def test_a_claim_on_sqlite_costs_the_same_however_much_is_ready() -> None:
    assert steps_on_sqlite(MANY) < FLAT * steps_on_sqlite(FEW)


@pytest.fixture
async def postgres(schemas: Schemas) -> AsyncIterator[Plain]:
    # Without statistics, which may be missing at any time.
    async with schemas.one(still=True) as url:
        plain = OnPostgres(url)
        await plain.store.open()
        yield plain
        await plain.close()
        await plain.store.close()


async def test_a_claim_on_postgresql_costs_the_same_however_much_is_ready(postgres: Plain) -> None:
    costs = [await _read_on_postgres(postgres, each) for each in (FEW, MANY)]
    assert costs[1] < FLAT * costs[0]


async def _read_on_postgres(postgres: Plain, each: int) -> int:
    """Return how many rows of runs a claim reads, as the server counts them."""
    await fill(postgres, each)
    claim = statement(postgres.dialect, "claim", postgres.tables)
    values = ", ".join(["'w'", f"'n{each}'", "'mail.%'", "NULL", "16", str(SECOND), "'node'"])
    await postgres.execute(f"PREPARE claim_{each} AS {claim.parts[0]}")
    [answer] = await postgres.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE claim_{each} ({values})")
    [plan] = json.loads(answer["QUERY PLAN"])
    found = list(_scans(plan["Plan"]))
    assert {one["Node Type"] for one in found} <= {"Index Scan", "Index Only Scan"}
    return int(sum((one["Actual Rows"] + one.get("Rows Removed by Filter", 0)) * one["Actual Loops"] for one in found))


def _scans(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if plan.get("Relation Name") == "perdure_runs" and "Scan" in plan["Node Type"]:
        yield plan
    for inner in plan.get("Plans", ()):
        yield from _scans(inner)


@pytest.fixture
async def mysql(databases: Databases) -> AsyncIterator[Plain]:
    async with databases.one() as url:
        plain = OnMysql(url)
        await plain.store.open()
        yield plain
        await plain.close()
        await plain.store.close()


async def test_a_claim_on_mysql_costs_the_same_however_much_is_ready(mysql: Plain) -> None:
    costs = []
    for each in (FEW, MANY):
        await fill(mysql, each)
        await mysql.execute("FLUSH STATUS")
        assert len(await mysql.do("claim", types="mail.%", number=16, runtime="node")) == 16
        reads = await mysql.execute("SHOW SESSION STATUS LIKE 'Handler_read%'")
        costs.append(sum(int(row["Value"]) for row in reads))
    assert costs[1] < FLAT * costs[0]


def test_every_statement_but_the_claim_finds_its_run_by_its_key(tmp_path: Path) -> None:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.executescript(migration_script("sqlite://"))
        for name in ("query", "heartbeat", "complete", "release"):
            for part in statement(SQLITE, name).parts:
                if part.split()[0] in ("BEGIN", "COMMIT"):
                    continue
                params = {name: None for name in ("id", "token", "nonce", "lease", "details", "output")}
                if part.split()[0] in ("DROP", "CREATE"):
                    # The table of one row that other parts read.
                    connection.execute(part, params)
                    part = part.partition(" AS\n")[2] or "SELECT 1"
                plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {part}", params)]
                scans = [line for line in plan if line.startswith("SCAN") and "CONSTANT" not in line]
                assert [line for line in scans if line not in ("SCAN a", "SCAN temp.perdure_asked")] == [], (name, plan)
