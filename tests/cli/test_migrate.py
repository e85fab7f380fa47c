from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.cli.conftest import URL, Perdure
from tests.servers.databases import Databases
from tests.servers.schemas import Schemas


@pytest.fixture
async def postgres(schemas: Schemas) -> AsyncIterator[str]:
    """A schema without tables, by a URL with a password."""
    async with schemas.one(fresh=True) as url:
        yield url.replace("postgres@", "postgres:secret@")


@pytest.fixture
async def mysql(databases: Databases) -> AsyncIterator[str]:
    """A database without tables."""
    async with databases.one(fresh=True) as url:
        yield url


@pytest.fixture(params=["sqlite", "postgres", "mysql"])
def url(request: pytest.FixtureRequest) -> str:
    """A database without tables."""
    return URL if request.param == "sqlite" else request.getfixturevalue(request.param)


def test_migrating_makes_the_tables_once(perdure: Perdure, url: str) -> None:
    first = perdure("migrate", url, "--json").json
    assert first["applied"]
    assert all(one["applied_at"] for one in first["migrations"])
    second = perdure("migrate", url, "--json").json
    assert second["applied"] == []
    assert second["migrations"] == first["migrations"]
    assert perdure("runs", url).code == 0


def test_the_database_of_an_engine_is_migrated_by_its_name(perdure: Perdure) -> None:
    assert perdure("migrate", "shop:engine").code == 0
    assert perdure("migrate", URL, "--json").json["applied"] == []


def test_the_status_is_told_without_changing_anything(perdure: Perdure, url: str) -> None:
    Path("shop.db").touch()
    for _ in range(2):
        [migration, *_] = perdure("migrate", url, "--status", "--json").json["migrations"]
        assert migration["applied_at"] is None
    assert perdure("runs", url).code == 1
    perdure("migrate", url)
    [migration, *_] = perdure("migrate", url, "--status", "--json").json["migrations"]
    assert migration["applied_at"] is not None
    assert migration["name"] in perdure("migrate", url, "--status").out


def test_the_status_of_a_file_that_is_not_there_makes_none(perdure: Perdure) -> None:
    assert perdure("migrate", "sqlite:///missing.db", "--status").code == 1
    assert not Path("missing.db").exists()


def test_the_sql_is_printed_and_not_run(perdure: Perdure, url: str) -> None:
    script = perdure("migrate", url, "--print").out
    assert "CREATE TABLE" in script
    assert perdure("migrate", url, "--print", "--json").json["sql"] == script.removesuffix("\n")
    assert not Path("shop.db").exists()
    assert perdure("runs", url).code == 1


def test_the_printed_sql_makes_the_tables(perdure: Perdure) -> None:
    script = perdure("migrate", URL, "--print").out
    database = sqlite3.connect(":memory:")
    database.executescript(script)
    database.execute("INSERT INTO perdure_runs (type) VALUES ('checkout')")
    database.close()


def test_a_password_is_not_told(perdure: Perdure, postgres: str) -> None:
    for options in ([], ["--json"], ["--status", "--json"], ["--print", "--json"]):
        answer = perdure("migrate", postgres, *options)
        assert answer.code == 0
        assert "secret" not in answer.out + answer.err
    Path("cloud.py").write_text(f"from shop import checkout, Engine\nengine = Engine({postgres!r}, [checkout])\n")
    for options in ([], ["--json"]):
        command = [sys.executable, "-m", "perdure.cli", "worker", "cloud:engine", *options]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as worker:
            assert worker.stdout is not None
            said = worker.stdout.readline()
            worker.terminate()
            said += worker.stdout.read()
        assert ":***@" in said
        assert "secret" not in said
