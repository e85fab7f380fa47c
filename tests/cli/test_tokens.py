"""`perdure tokens` makes, lists and revokes tokens."""

from __future__ import annotations

from tests.cli.conftest import URL, Perdure


def test_a_token_is_shown_once_listed_and_revoked(perdure: Perdure) -> None:
    made = perdure("tokens", "create", URL, "ci", "--role", "operator", "--expires", "90d")
    assert (made.code, made.out.startswith("perdure_")) == (0, True)
    assert len(made.out.strip()) >= 51
    assert made.err == "Keep it: it is not shown again.\n"
    listed = perdure("tokens", "list", URL)
    assert made.out.strip() not in listed.out
    [one] = perdure("tokens", URL, "--json").json
    assert (one["name"], one["role"], one["revoked_at"], one["used_at"]) == ("ci", "operator", None, None)
    assert one["expires_at"] is not None
    twice = perdure("tokens", "create", URL, "ci")
    assert (twice.code, "there is a valid token 'ci'" in twice.err) == (1, True)
    assert perdure("tokens", "revoke", URL, "ci").out == "ci  revoked\n"
    assert "revoked" in perdure("tokens", "list", URL).out
    again = perdure("tokens", "create", URL, "ci", "--json").json
    assert (again["role"], again["token"] != made.out.strip()) == ("viewer", True)


def test_an_unknown_token_and_a_past_end_are_refused(perdure: Perdure) -> None:
    perdure("migrate", URL)
    assert perdure("tokens", "list", URL).err == "There is no token.\n"
    missing = perdure("tokens", "revoke", URL, "ci")
    assert (missing.code, missing.err) == (1, "perdure: there is no token 'ci'\n")
    past = perdure("tokens", "create", URL, "ci", "--expires", "2001-01-01T00:00Z")
    assert (past.code, "not in the future" in past.err) == (1, True)
