from __future__ import annotations

from tests.cli.conftest import URL, Perdure, work


def failed(perdure: Perdure, *run_ids: str) -> None:
    arguments = '{"order": {"id": "x", "cents": -5}}'
    for run_id in run_ids:
        assert perdure("start", "shop:engine", "checkout", "--input", arguments, "--id", run_id).code == 0
    work(*run_ids)


def test_dead_letters_are_listed_and_shown_with_every_error(perdure: Perdure) -> None:
    assert perdure("start", URL, "checkout", "--id", "odd").code == 0
    failed(perdure, "o-1", "o-2")
    listed = perdure("dead-letters", URL, "--json").json
    assert [letter["id"] for letter in listed["letters"]][:2] == ["o-2", "o-1"]
    assert [error["attempt"] for error in listed["letters"][0]["errors"]] == [1, 2, 3, 1]
    assert perdure(
        "dead-letters", "list", URL, "--type", "check%", "--error", "ValueError", "--limit", "1"
    ).err.startswith("There are more: --cursor ")
    assert "nothing to charge" in perdure("dead-letters", "list", URL, "--since", "1h").out
    assert perdure("dead-letters", "list", URL, "--cause", "poison").err == "No dead letters.\n"
    shown = perdure("dead-letters", "show", URL, "o-1")
    assert shown.out.startswith("o-1  checkout  failed\n")
    assert shown.out.count("ValueError: nothing to charge") == 4
    assert perdure("dead-letters", "show", URL, "o-1", "--json").json["reason"] == "failed"
    assert "there is no run 'missing'" in perdure("dead-letters", "show", URL, "missing").err


def test_dead_letters_are_retried_by_name_and_by_filter(perdure: Perdure) -> None:
    failed(perdure, "o-1", "o-2", "o-3")
    assert (
        perdure("dead-letters", "retry", URL, "o-1", "--to-queue", "slow", "--deadline", "1h").out == "o-1 continues.\n"
    )
    assert perdure("show", URL, "o-1", "--json").json["run"]["queue"] == "slow"
    again = perdure("dead-letters", "retry", URL, "o-1")
    assert (again.code, "is no dead letter, it is pending" in again.err) == (1, True)
    refused = perdure("dead-letters", "retry", URL, "o-2", "--input", '{"order": {"id": "x", "cents": 5}}', "--json")
    assert (refused.code, "fork(input=...)" in refused.json["refused"]["o-2"]) == (1, True)
    assert perdure("dead-letters", "retry", URL, "--error", "ValueError").out == "2 runs continue.\n"
    assert perdure("dead-letters", "retry", URL, "--all").out == "0 runs continue.\n"
    assert perdure("dead-letters", "retry").code == 2


def test_dead_letters_are_discarded_restored_and_pruned(perdure: Perdure) -> None:
    failed(perdure, "o-1", "o-2")
    assert perdure("dead-letters", "discard", URL, "o-1", "--reason", "a test").out == "o-1 is discarded.\n"
    assert [one["id"] for one in perdure("dead-letters", URL, "--json").json["letters"]] == ["o-2"]
    assert [one["id"] for one in perdure("dead-letters", URL, "--discarded", "--json").json["letters"]] == ["o-1"]
    assert perdure("runs", "undelete", URL, "o-1").out == "o-1 is restored.\n"
    assert perdure("runs", "undelete", URL, "o-1", "--json").json == {"id": "o-1", "restored": False}
    assert perdure("dead-letters", "prune", URL, "--older-than", "1h").out == "0 runs deleted.\n"
    assert perdure("dead-letters", "prune", URL, "--older-than", "0s", "--json").json == {"deleted": 2, "spared": 0}
    assert perdure("dead-letters", URL).err == "No dead letters.\n"


def test_finished_runs_are_deleted_and_pruned(perdure: Perdure) -> None:
    failed(perdure, "o-1", "o-2")
    assert perdure("start", "shop:engine", "family", "--id", "home").code == 0
    work("home")
    assert perdure("runs", "delete", URL, "o-1", "--reason", "old").out == "o-1 is deleted.\n"
    assert perdure("runs", "delete", URL, "o-1", "--json").json == {"id": "o-1", "deleted": False}
    assert perdure("start", "shop:engine", "checkout", "--input", '[{"id": "x", "cents": 5}]', "--id", "o-3").code == 0
    work("o-3")
    assert perdure("runs", "delete", URL, "o-3", "--purge").out == "o-3 is deleted.\n"
    assert perdure("show", URL, "o-3").code == 1
    assert "o-1" not in perdure("runs", URL).out
    assert "o-1" in perdure("runs", URL, "--deleted").out
    assert "deleted" in perdure("show", URL, "o-1").out
    assert perdure("runs", "prune", URL, "--older-than", "0s", "--deleted").out == "1 run deleted.\n"
    pruned = perdure("runs", "prune", URL, "--older-than", "0s", "--status", "completed", "--type", "fam%", "--json")
    assert pruned.json == {"deleted": 2, "spared": 0}
    assert perdure("runs", "prune", URL, "--older-than", "soon").code == 1
    assert [run["id"] for run in perdure("runs", URL, "--json").json["runs"]] == ["o-2"]
