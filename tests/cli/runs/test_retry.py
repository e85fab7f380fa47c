from __future__ import annotations

import sqlite3
from contextlib import closing

from tests.cli.conftest import URL, Perdure, work


def failed(perdure: Perdure, run_id: str = "o-1") -> None:
    arguments = '{"order": {"id": "x", "cents": -5}}'
    assert perdure("start", "shop:engine", "checkout", "--input", arguments, "--id", run_id).code == 0
    work(run_id)


def test_a_failed_run_is_opened_again(perdure: Perdure) -> None:
    failed(perdure)
    assert perdure("retry", URL, "o-1", "--json").json == {"id": "o-1", "generation": 2}
    again = perdure("retry", URL, "o-1")
    assert again.code == 1
    assert again.err.startswith("perdure: there is nothing to retry in run 'o-1', it is pending")
    work("o-1")
    assert perdure("retry", URL, "o-1", "--deadline", "1h").out == "o-1 continues, as generation 3.\n"


def test_a_run_set_aside_as_poison_is_retried(perdure: Perdure) -> None:
    failed(perdure)
    with closing(sqlite3.connect("shop.db")) as database, database:
        database.execute(
            "UPDATE perdure_runs SET status = 'blocked', reason = 'poison', error = '{}', finished_at = 0 "
            "WHERE id = 'o-1'"
        )
    database.close()
    assert perdure("retry", URL, "o-1").out == "o-1 continues, as generation 1.\n"
    assert "nothing to retry in run 'o-1'" in perdure("runs", "retry", URL, "o-1").err


def test_a_run_is_forked_with_other_arguments_and_results(perdure: Perdure) -> None:
    assert perdure("start", "shop:engine", "family", "--id", "home").code == 0
    work("home")
    assert perdure("runs", "fork", URL, "home", "--id", "again").out == "again\n"
    arguments = '{"order": {"id": "x", "cents": 8}, "note": "!"}'
    forked = perdure(
        "runs", "fork", "shop:engine", "home/checkout", "--from-step", "charge", "--input", arguments, "--json"
    ).json
    assert forked["source"] == "home/checkout"
    work("again", forked["id"])
    assert perdure("show", URL, forked["id"], "--json").json["run"]["output"] == "paid 8!"
    history = perdure("show", URL, "home/checkout", "--json").json["history"]
    number = next(record["seq"] for record in history if record["location"] == "charge")
    other = perdure("runs", "fork", URL, "home/checkout", "--from-index", str(number), "--id", "third")
    assert other.out == "third\n"
    [event] = [one for one in perdure("show", URL, "third", "--json").json["events"] if one["kind"] == "forked"]
    assert event["data"] == {"run": "home/checkout", "step": "charge"}


def test_a_fork_that_makes_no_sense_is_refused(perdure: Perdure) -> None:
    assert perdure("start", "shop:engine", "family", "--id", "home").code == 0
    work("home")
    assert "has no step 'pay'; it has: checkout" in perdure("runs", "fork", URL, "home", "--from-step", "pay").err
    assert "'home' has no record 99; fork it from" in perdure("runs", "fork", URL, "home", "--from-index", "99").err
    both = perdure("runs", "fork", URL, "home", "--from-step", "checkout", "--from-index", "0")
    assert "give either --from-step or --from-index" in both.err
    assert "STEP=JSON" in perdure("runs", "fork", URL, "home", "--result", "charge").err
    assert "is not JSON" in perdure("runs", "fork", URL, "home", "--result", "charge=x").err
    assert "by name" in perdure("runs", "fork", URL, "home", "--input", "[1]").err


def test_a_record_that_a_retry_kept_is_marked(perdure: Perdure) -> None:
    assert perdure("start", "shop:engine", "doomed", "--id", "d-1").code == 0
    work("d-1")
    assert "kept from" not in perdure("show", URL, "d-1").out
    assert perdure("retry", URL, "d-1").code == 0
    work("d-1")
    lines = [line for line in perdure("show", URL, "d-1").out.splitlines() if '"paid 5"' in line]
    assert ["(kept from attempt 1)" in line for line in lines] == [False, True]
