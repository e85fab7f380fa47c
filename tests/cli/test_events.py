from __future__ import annotations

from tests.cli.conftest import URL, Perdure


def test_sticky_events_are_emitted_read_listed_and_deleted(perdure: Perdure) -> None:
    assert perdure("events", "emit", URL, "rates", '{"EUR": 1.5}').out == "Emitted rates.\n"
    assert perdure("events", "get", URL, "rates").out == '{"EUR": 1.5}\n'
    assert perdure("events", "emit", URL, "rates", "2").code == 1
    kept = perdure("events", "emit", URL, "rates", "2").out
    assert kept == "rates was emitted before with another value, which stays; --replace replaces it.\n"
    assert perdure("events", "emit", URL, "rates", "2", "--replace", "--json").json == {
        "name": "rates",
        "emitted": True,
    }
    assert perdure("events", "get", URL, "rates", "--timeout", "5s", "--json").json["value"] == 2
    assert "rates" in perdure("events", "list", URL).out
    assert [one["name"] for one in perdure("events", "list", URL, "--prefix", "ra", "--json").json] == ["rates"]
    assert perdure("events", "delete", URL, "rates").out == "Deleted rates.\n"
    assert perdure("events", "delete", URL, "rates").out == "rates was not emitted.\n"
    assert perdure("events", "get", URL, "rates").out == "rates was not emitted.\n"
    assert perdure("events", "list", URL).err == "No sticky event was emitted.\n"
