"""Telling a server that was replaced, or has lost commits, by what it says of itself."""

from __future__ import annotations

import pytest

from perdure.store.server.identity import ServerIdentity, ServerReplaced, ServerTracker


@pytest.mark.parametrize(
    ("position", "lost"), [({"log": 1}, False), ({"log": 2}, False), ({"log": 0}, True), ({}, True)]
)
def test_a_server_that_has_written_less_than_before_has_lost_commits(position: dict[str, int], *, lost: bool) -> None:
    replaced: list[str] = []
    tracker = ServerTracker(lambda: "the server", lambda: replaced.append("replaced"))
    assert tracker.record(ServerIdentity("a", {"log": 1}), tracker.snapshot()) == 0
    assert tracker.record(ServerIdentity("a", position), tracker.snapshot()) == int(lost)
    assert replaced == ["replaced"] * lost


def test_a_worker_that_began_on_a_server_has_to_begin_anew_on_another() -> None:
    tracker = ServerTracker(lambda: "the server", lambda: None)
    epoch = tracker.record(ServerIdentity("a", {}), tracker.snapshot())
    tracker.register("w1", epoch)
    tracker.check("w1", epoch)
    other = tracker.record(ServerIdentity("b", {}), tracker.snapshot())
    with pytest.raises(ServerReplaced, match="w1"):
        tracker.check("w1", other)
    tracker.check("unknown", other)
    tracker.register("w1", other)
    tracker.check("w1", other)
