from __future__ import annotations

import pytest

from tests.cli.conftest import URL, Perdure, work


def test_a_run_is_paused_and_resumed(perdure: Perdure) -> None:
    perdure("start", "shop:engine", "approval", "--id", "a")
    assert perdure("pause", URL, "a", "--reason", "not yet", "--json").json == {"run_id": "a", "paused": True}
    assert perdure("pause", URL, "a").out == "a was paused already, or has finished.\n"
    assert "not yet" in perdure("why", URL, "a").out
    assert perdure("show", URL, "a", "--json").json["run"]["reason"] == "paused"
    assert perdure("resume", URL, "a").out == "a goes on.\n"
    assert perdure("resume", URL, "a", "--json").json == {"run_id": "a", "resumed": False}


@pytest.mark.parametrize(("option", "name"), [("--type", "checkout"), ("--queue", "default")])
def test_a_type_and_a_queue_are_paused_and_resumed(perdure: Perdure, option: str, name: str) -> None:
    perdure("start", "shop:engine", "checkout", "--input", '[{"id": "o", "cents": 1}]', "--id", "o")
    assert perdure("paused", URL).out == "No type and no queue is paused.\n"
    assert perdure("pause", URL, option, name, "--reason", "stocktaking").out == f"{name} is paused.\n"
    assert perdure("paused", URL).out == f"{option[2:]} {name}: stocktaking\n"
    [pause] = perdure("paused", URL, "--json").json
    assert (pause["kind"], pause["name"]) == (option[2:], name)
    assert "stocktaking" in perdure("why", URL, "o").out
    assert perdure("resume", URL, option, name).out == f"{name} goes on.\n"
    work("o")
    assert "completed" in perdure("why", URL, "o").out


@pytest.mark.parametrize("arguments", [(), ("--type", "a", "--queue", "b"), ("a", "b", "c")])
def test_what_is_paused_is_said_properly(perdure: Perdure, arguments: tuple[str, ...]) -> None:
    assert perdure("pause", *arguments).code == 2
    assert perdure("resume", *arguments).code == 2


def test_a_run_that_nobody_holds_cannot_be_taken_from_anybody(perdure: Perdure) -> None:
    perdure("start", "shop:engine", "approval", "--id", "a")
    assert perdure("evict", URL, "a").out == "a is in no worker's hands.\n"
    assert perdure("evict", URL, "a", "--json").json == {"id": "a", "evicted": False}


def test_a_run_for_later_is_woken(perdure: Perdure) -> None:
    perdure("start", "shop:engine", "approval", "--id", "a", "--at", "10d")
    assert perdure("wake", URL, "a", "--at", "1h").out == "a is woken then.\n"
    assert perdure("wake", URL, "a", "--json").json == {"id": "a", "woken": True}
    refused = perdure("wake", URL, "a")
    assert refused.code == 1
    assert "not asleep" in refused.err
