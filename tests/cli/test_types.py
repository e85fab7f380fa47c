"""Looking at types, working on some of them, and printing plain SQL."""

from __future__ import annotations

import pytest

from perdure.cli.app import cli
from perdure.store.plain_sql import NAMES
from tests.cli.conftest import URL, Perdure, work


def test_types_are_listed_with_who_serves_them(perdure: Perdure) -> None:
    run_id = "o"
    perdure("start", "shop:engine", "checkout", "--input", '{"order": {"id": "o", "cents": 5}}', "--id", run_id)
    assert perdure("queues", "types", URL).err == "No worker has registered a type yet.\n"
    work(run_id)
    perdure("queues", "pause", URL, "--type", "family")
    listed = [line.split() for line in perdure("queues", "types", URL).out.splitlines()]
    assert listed[1:3] == [[name, "workflow", "python", "enabled"] for name in ("approval", "checkout")]
    assert listed[-1] == ["family", "workflow", "python", "disabled"]
    assert [one["enabled"] for one in perdure("queues", "types", URL, "--json").json] == [True, True, True, False]


def test_a_worker_of_no_type_says_what_there_is(perdure: Perdure) -> None:
    answer = perdure("worker", "shop:engine", "--types", "billing.%")
    assert answer.code == 1
    assert "no type matches 'billing.%'; there are approval, checkout" in answer.err


@pytest.mark.parametrize("database", ["sqlite", "postgresql", "mysql"])
def test_plain_sql_is_printed_for_each_database_and_for_other_tables(perdure: Perdure, database: str) -> None:
    everything = perdure("sql", "--database", database).out
    assert [f"-- {name}, version " in everything for name in NAMES] == [True] * len(NAMES)
    answer = perdure("sql", "claim", "--database", database, "--tables", "ops_")
    assert "ops_runs" in answer.out
    assert "perdure_" not in answer.out
    [claim] = perdure("sql", "claim", "--database", database, "--json").json
    assert (claim["name"], claim["version"]) == ("claim", 2)


def test_there_is_no_other_statement(perdure: Perdure) -> None:
    assert perdure("sql", "drop").code == 2
    assert "sql" in cli.list_commands(cli.make_context("perdure", ["--help"], resilient_parsing=True))
