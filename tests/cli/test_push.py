from __future__ import annotations

from tests.cli.conftest import URL, Perdure


def test_what_is_due_is_listed_and_executed(perdure: Perdure) -> None:
    perdure("start", "shop:engine", "checkout", "--input", '[{"id": "o", "cents": 1}]', "--id", "o")
    perdure("start", "shop:engine", "approval", "--id", "a")
    assert perdure("runs", "due", "shop:engine").out == "o\na\n"
    assert perdure("runs", "due", "shop:engine", "--limit", "1", "--json").json == ["o"]
    assert perdure("runs", "due", "shop:engine", "--queue", "slow").out == ""
    assert perdure("runs", "execute", "shop:engine", "o", "--timeout", "20s").out == "o is finished.\n"
    assert perdure("runs", "execute", "shop:engine", "a").out == "a is waiting for a message.\n"
    document = perdure("runs", "execute", "shop:engine", "a", "--json").json
    assert (document["state"], document["worked"], document["again_in"]) == ("waiting", False, None)


def test_a_database_alone_is_not_enough(perdure: Perdure) -> None:
    assert perdure("runs", "execute", URL, "o").code == 2
    assert "needs code" in perdure("runs", "execute", URL, "o").err
    assert perdure("runs", "due", URL).code == 2
