from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from perdure.cli.stress.command import percentile
from perdure.errors import UsageError
from perdure.host import Host
from perdure.store import open_store
from tests.servers.databases import Databases
from tests.servers.schemas import Schemas
from tests.stage import set_up


def stress(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "perdure.cli", "stress", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=True, timeout=120)


def test_a_load_is_worked_on_and_reported_although_workers_are_killed(tmp_path: Path) -> None:
    knobs = ["--runs", "30", "--concurrent", "10", "--steps", "2", "--activities", "1", "--failure-rate", "0.2"]
    # All runs together take 3.5 s, so that a worker is killed. On a busy machine, others live long enough to get on.
    knobs += ["--workers", "2", "--kill", "2s", "--lease", "1s", "--latency", "500ms", "--payload", "1000"]
    told = stress(*knobs, "--json", cwd=tmp_path)
    report: dict[str, Any] = json.loads(told.stdout)
    assert (report["runs"], report["completed"] + report["failed"]) == (30, 30)
    assert 0 < report["failed"] < 30
    assert report["failed_percent"] == pytest.approx(100 * report["failed"] / 30)
    assert report["kills"] >= 1
    assert 0.02 < report["p50"] <= report["p99"] <= report["longest"] <= report["seconds"]
    assert report["runs_per_second"] == pytest.approx(30 / report["seconds"])
    assert told.stderr == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["file", "postgres", "mysql"])
async def test_a_database_that_is_named_is_left_as_it_was(
    kind: str, tmp_path: Path, schemas: Schemas, databases: Databases
) -> None:
    async with set_up(kind, tmp_path, schemas, databases) as stage, stage.engine() as engine:
        assert (await engine.runs.list()).runs == ()
        told = stress("--runs", "10", "--store", stage.url, cwd=tmp_path)
        assert "10 in " in told.stdout
        assert "10 of 10 runs" in told.stderr
        assert (await engine.runs.list()).runs == ()
        catalog = "sqlite_master" if kind == "file" else "information_schema.tables"
        name = "name" if kind == "file" else "table_name"
        assert await stage.rows(f"SELECT {name} FROM {catalog} WHERE {name} LIKE 'stress%'") == []


async def test_the_usual_tables_are_never_dropped() -> None:
    store = open_store("sqlite://", Host(), inline=True)
    await store.open()
    with pytest.raises(UsageError, match="may hold real runs"):
        await store.remove()
    await store.close()


def test_a_percentile_is_one_of_the_values() -> None:
    assert percentile([1.0, 2.0, 3.0, 4.0], 0.5) == 2.0
    assert percentile([1.0, 2.0, 3.0, 4.0], 0.99) == 4.0
    assert percentile([7.0], 0.5) == 7.0
