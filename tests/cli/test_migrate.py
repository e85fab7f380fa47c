from __future__ import annotations

import sqlite3
from pathlib import Path

from tests.cli.conftest import URL, Perdure


def test_migrating_makes_the_tables_once(perdure: Perdure) -> None:
    first = perdure("migrate", URL, "--json").json
    assert first["applied"]
    assert all(one["applied_at"] for one in first["migrations"])
    second = perdure("migrate", URL, "--json").json
    assert second["applied"] == []
    assert second["migrations"] == first["migrations"]
    assert perdure("runs", URL).code == 0


def test_the_database_of_an_engine_is_migrated_by_its_name(perdure: Perdure) -> None:
    assert perdure("migrate", "shop:engine").code == 0
    assert perdure("migrate", URL, "--json").json["applied"] == []


def test_the_status_is_told_without_changing_anything(perdure: Perdure) -> None:
    Path("shop.db").touch()
    [migration, *_] = perdure("migrate", URL, "--status", "--json").json["migrations"]
    assert migration["applied_at"] is None
    assert perdure("runs", URL).code == 1
    assert perdure("migrate", "sqlite:///missing.db", "--status").code == 1
    assert not Path("missing.db").exists()


def test_the_printed_sql_makes_the_tables(perdure: Perdure) -> None:
    script = perdure("migrate", URL, "--print").out
    assert not Path("shop.db").exists()
    database = sqlite3.connect(":memory:")
    database.executescript(script)
    database.execute("INSERT INTO perdure_runs (type) VALUES ('checkout')")
    database.close()
    assert perdure("migrate", URL, "--print", "--json").json["sql"] == script.removesuffix("\n")
