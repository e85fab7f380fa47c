"""A later version migrates a database in use: real processes, and a migration that only this test has."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from perdure import Engine
from perdure.errors import SchemaMismatch
from perdure.store.migrations import known
from perdure.store.sql.dialect import MYSQL, POSTGRES, SQLITE
from perdure.testing.conformance.harness import ACTOR, a_run
from tests.helpers import eventually
from tests.invariants import Known, scan_store
from tests.store.migrations.conftest import Place, Servers, a_place
from tests.store.migrations.versions import LATER, tasting

ROUNDS = 10 if os.environ.get("PERDURE_PROVE") else 1
POINTS = ("migrate.enter", "migrate.begun", "migrate.written", "migrate.committed")

DIALECTS = {"sqlite": SQLITE, "postgres": POSTGRES, "mysql": MYSQL}

Process = subprocess.Popen[str]


@contextmanager
def processes(place: Place, *roles: str, crash_point: str = "") -> Iterator[list[Process]]:
    """Start processes that wait for their signal to begin."""
    command = [sys.executable, "-m", "tests.store.migrations.versions"]
    started = [
        subprocess.Popen(
            [*command, role, place.url, crash_point],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for role in roles
    ]
    try:
        for process in started:
            assert _said(process) == "up"
        yield started
    finally:
        for process in started:
            process.kill()
            process.communicate()


def begin(*waiting: Process) -> None:
    for process in waiting:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()


def end(*running: Process) -> list[str]:
    """Return the errors that they logged, which must not have stopped them."""
    complaints = [process.communicate(timeout=60)[1] for process in running]
    assert [process.returncode for process in running] == [0] * len(running), complaints
    return [complaint for complaint in complaints if complaint]


def _said(process: Process) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.parametrize("_", range(ROUNDS))
async def test_processes_that_start_at_once_migrate_once(place: Place, _: int) -> None:
    with processes(place, *["later-migrator"] * 4, *["this-migrator"] * 2) as started:
        begin(*started[:4])
        assert end(*started[:4]) == []
        async with place.store_of_later() as store:
            applied = await store.query("SELECT version FROM perdure_migrations ORDER BY version")
        ours = [one.version for one in known(DIALECTS[place.kind])]
        assert [row[0] for row in applied] == [*ours, ours[-1] + 1]
        # This version does not know the later schema and leaves it alone.
        begin(*started[4:])
        complaints = [process.communicate(timeout=60)[1] for process in started[4:]]
        assert all(SchemaMismatch.__name__ in complaint for complaint in complaints)


@pytest.mark.parametrize("_", range(ROUNDS))
async def test_workers_go_on_while_a_later_version_migrates(place: Place, _: int) -> None:
    async with place.store() as store:
        async with Engine(place.url, [tasting], migrate=False) as engine:
            with processes(
                place, "this-worker", "this-worker", "later-migrator", "later-migrator", "later-worker"
            ) as all_:
                workers, migrators, newcomer = all_[:2], all_[2:4], all_[4]
                begin(*workers)
                assert [_said(worker) for worker in workers] == ["working"] * 2
                before = await engine.start_many([tasting(200) for _ in range(20)])

                async def under_way() -> bool:
                    [(count,)] = await store.query("SELECT COUNT(DISTINCT run_id) FROM perdure_history")
                    return bool(count >= 5)

                await eventually(under_way, saying="five runs being under way")
                begin(*migrators)
                assert end(*migrators) == []
                # Some of them may end before this process knows that the migrators have.
                applied = "SELECT MAX(applied_at) FROM perdure_migrations"
                [(disturbed,)] = await store.query(
                    f"SELECT COUNT(*) FROM perdure_runs WHERE finished_at = 0 OR finished_at > ({applied})"
                )
                assert disturbed, "the migration came too late to disturb anybody"
                after = await engine.start_many([tasting(3) for _ in range(20)])
                begin(newcomer)
                assert _said(newcomer) == "working"
                later = await engine.start_many([tasting(3) for _ in range(20)])
                assert [await run.result("60s") for run in before] == [sum(range(200))] * 20
                assert [await run.result("60s") for run in [*after, *later]] == [3] * 40
                assert end(*workers, newcomer) == []
        known = Known(starts=frozenset(run.id for run in [*before, *after, *later]), settled=frozenset())
        assert await scan_store(store.query, known) == []
        assert await store.query("SELECT DISTINCT flavour FROM perdure_runs") == [("plain",)]
        assert "by_flavour" in (await place.schema())["perdure_runs"].indexes


@pytest.mark.parametrize("done", [1, 2])
async def test_a_migrator_that_died_between_two_statements_that_commit_by_themselves_has_an_heir(
    tmp_path: Path, servers: Servers, done: int
) -> None:
    async with a_place("mysql", tmp_path, servers) as place, place.store():
        statements = LATER["mysql"].split(";\n")
        await place.run(";\n".join(statements[:done]))
        with processes(place, "later-migrator", "later-migrator") as heirs:
            begin(*heirs)
            assert end(*heirs) == []
        assert "by_flavour" in (await place.schema())["perdure_runs"].indexes


@pytest.mark.parametrize("point", POINTS)
async def test_a_migrator_that_dies_leaves_nothing_half_done(place: Place, point: str) -> None:
    async with place.store() as store:
        await store.create([a_run("r1")], ACTOR)
        before = await place.schema()
        with processes(place, "later-migrator", crash_point=point) as [victim]:
            begin(victim)
            victim.communicate(timeout=60)
            assert victim.returncode == -signal.SIGKILL
        left = await place.schema()
        changed = "flavour" in left["perdure_runs"].columns
        # Where DDL commits by itself, the killed process leaves what it had done so far.
        done = ("migrate.committed", "migrate.written") if place.kind == "mysql" else ("migrate.committed",)
        assert changed == (point in done)
        assert changed or left == before
        with processes(place, "later-migrator") as [heir]:
            begin(heir)
            assert end(heir) == []
        assert "by_flavour" in (await place.schema())["perdure_runs"].indexes
        assert await store.get("r1") is not None
