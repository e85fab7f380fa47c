from __future__ import annotations

from tests.cli.conftest import URL, Perdure


def test_breakers_are_listed_opened_closed_and_reset(perdure: Perdure) -> None:
    perdure("migrate", URL)
    assert perdure("breakers", "list", URL).err == "There is no breaker yet.\n"
    assert perdure("breakers", "open", URL, "api").out == "api is open until it is closed or reset.\n"
    assert perdure("breakers", URL).out.split()[5:] == ["api", "open", "by", "hand", "0", "0", "0"]
    assert perdure("breakers", "close", URL, "api", "--json").json == {"name": "api", "circuit": "closed"}
    [breaker] = perdure("breakers", "list", URL, "--json").json
    assert (breaker["name"], breaker["circuit"], breaker["by_hand"]) == ("api", "closed", True)
    assert "opens by itself" in perdure("breakers", "reset", URL, "api").out
    assert perdure("breakers", "open", URL, "a/b").code == 1
