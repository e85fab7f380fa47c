"""Orders in an inbox, and what may be taken in meanwhile."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from perdure.core.model import Kind, Message
from perdure.worker.steering import Steering


def entry(seq: int, kind: Kind = Kind.MESSAGE) -> Message:
    return Message(run_id="r1", seq=seq, kind=kind, name="n", payload="1", failed=False, key=f"k{seq}", sent_at=0)


def test_what_was_given_before_is_not_given_again() -> None:
    steering = Steering(cast("Any", SimpleNamespace(seen=1)))
    assert [message.seq for message in steering.sift([entry(1), entry(2)])] == [2]
    assert [message.seq for message in steering.sift([entry(1), entry(2), entry(3)])] == [3]
    assert steering.looked == 3


def test_a_paused_run_is_given_nothing_before_it_is_resumed() -> None:
    steering = Steering(cast("Any", SimpleNamespace(seen=0)))
    assert steering.sift([entry(1, Kind.PAUSE), entry(2)]) == []
    assert steering.holds_back
    assert [message.seq for message in steering.sift([entry(2), entry(3, Kind.RESUME)])] == [1, 2, 3]
    assert not steering.holds_back
