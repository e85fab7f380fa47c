"""Orders in an inbox, and what may be taken in meanwhile."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from perdure.core.model.record import Message, RecordKind
from perdure.worker.run.pause_and_evict import RunOrders


def entry(seq: int, kind: RecordKind = RecordKind.MESSAGE) -> Message:
    return Message(run_id="r1", seq=seq, kind=kind, name="n", payload="1", failed=False, key=f"k{seq}", sent_at=0)


def test_what_was_given_before_is_not_given_again() -> None:
    orders = RunOrders(cast("Any", SimpleNamespace(seen=1)), cast("Any", None))
    assert [message.seq for message in orders.accept([entry(1), entry(2)])] == [2]
    assert [message.seq for message in orders.accept([entry(1), entry(2), entry(3)])] == [3]
    assert orders.inbox_known == 3


def test_a_paused_run_is_given_nothing_before_it_is_resumed() -> None:
    orders = RunOrders(cast("Any", SimpleNamespace(seen=0)), cast("Any", None))
    assert orders.accept([entry(1, RecordKind.PAUSE), entry(2)]) == []
    assert orders.blocks_steps
    assert [message.seq for message in orders.accept([entry(2), entry(3, RecordKind.RESUME)])] == [1, 2, 3]
    assert not orders.blocks_steps
