from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.conftest import SHOP, URL, Perdure, work


@pytest.fixture
def waiting(perdure: Perdure) -> None:
    """A run that has charged, and waits."""
    Path("shop.py").write_text(
        SHOP.replace("    return await ctx.receive", "    await ctx.step(charge, 5)\n    return await ctx.receive")
    )
    assert perdure("start", "shop:engine", "approval", "--id", "a").code == 0
    assert (
        perdure("start", "shop:engine", "checkout", "--input", '{"order": {"id": "x", "cents": 5}}', "--id", "b").code
        == 0
    )
    work("b")
    # Both were taken by the same worker; the one that waits has its record by now.
    with closing(sqlite3.connect("shop.db")) as database, database:
        assert database.execute("SELECT count(*) FROM perdure_history WHERE run_id = 'a'").fetchall() == [(1,)]
    database.close()


@pytest.mark.usefixtures("waiting")
def test_code_that_fits_passes(perdure: Perdure) -> None:
    answer = perdure("check", "shop:engine")
    assert (answer.code, answer.out) == (0, "1 run checked, all continue with this code.\n")


@pytest.mark.usefixtures("waiting")
def test_code_that_does_not_fit_fails_with_the_difference_and_a_fix(perdure: Perdure) -> None:
    Path("shop.py").write_text(SHOP)
    answer = perdure("check", "shop:engine")
    assert answer.code == 1
    assert answer.out.splitlines() == [
        "a (approval): diverged",
        "  - record 0: step 'charge'",
        "  + the code waits for message 'approval'",
        "  fix: " + answer.out.splitlines()[3].removeprefix("  fix: "),
        "1 run checked, 1 would diverge.",
    ]
    assert 'await ctx.removed("charge", "step")' in answer.out
    document = perdure("check", "shop:engine", "--json").json
    assert (document["ok"], document["checked"], document["more"]) == (False, 1, False)
    assert {name: document["findings"][0][name] for name in ("id", "type", "problem", "warning")} == {
        "id": "a", "type": "approval", "problem": "diverged", "warning": False,
    }  # fmt: skip


@pytest.mark.usefixtures("waiting")
def test_runs_are_chosen_by_type(perdure: Perdure) -> None:
    Path("shop.py").write_text(SHOP)
    assert perdure("check", "shop:engine", "--type", "checkout").code == 0
    assert perdure("check", "shop:engine", "--type", "approval", "--limit", "1").code == 1
    perdure("start", URL, "elsewhere", "--id", "c")
    assert "unserved" in perdure("check", "shop:engine", "--limit", "1").out
    assert "elsewhere" not in perdure("check", "shop:engine", "--own").out


def test_a_check_needs_code(perdure: Perdure) -> None:
    perdure("migrate", URL)
    answer = perdure("check", URL)
    assert answer.code == 2
    assert "name an engine" in answer.err
