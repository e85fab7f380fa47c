"""Telling a server that was replaced, or has lost commits, by what it says of itself."""

from __future__ import annotations

import pytest

from perdure.store.server.identity import ServerIdentity, ServerTracker


@pytest.mark.parametrize(
    ("position", "lost"), [({"log": 1}, False), ({"log": 2}, False), ({"log": 0}, True), ({}, True)]
)
def test_a_server_that_has_written_less_than_before_has_lost_commits(position: dict[str, int], *, lost: bool) -> None:
    replaced: list[str] = []
    tracker = ServerTracker(lambda: "the server", lambda: replaced.append("replaced"))
    assert tracker.record(ServerIdentity("a", {"log": 1}), tracker.snapshot()) == 0
    assert tracker.record(ServerIdentity("a", position), tracker.snapshot()) == int(lost)
    assert replaced == ["replaced"] * lost
