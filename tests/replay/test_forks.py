"""Replay of what a fork has copied: it led to nothing of the fork's own, and its messages were sent by its source."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from perdure import Call, Context
from perdure.core.model.record import NewMessage, Record, RecordKind, is_copied
from tests.replay.driver import START, Driver, deed, named

STEP = Record(seq=0, kind=RecordKind.STEP, location="a", payload='"done"', at=START)
MARK = Record(seq=0, kind=RecordKind.FORK, location="", payload='{"run":"source"}', at=START)
SENT = Record(seq=0, kind=RecordKind.MESSAGE, location="m", payload="1", at=START, digest="7")
BROKEN = Record(
    seq=0, kind=RecordKind.BROKEN, location="", payload='{"type":"NameError","message":"x"}', failed=True, at=START
)


def numbered(*records: Record) -> list[Record]:
    return [replace(record, seq=seq) for seq, record in enumerate(records)]


#: The last two are as earlier versions wrote them.
COPIED = [
    numbered(MARK, STEP),
    numbered(STEP, MARK, SENT),
    numbered(MARK, SENT, SENT, MARK),
    numbered(MARK, STEP, replace(MARK, payload="{}"), STEP),
    numbered(SENT, MARK, SENT),
    numbered(STEP, MARK),
]
OWN = [
    [],
    numbered(STEP),
    numbered(STEP, STEP),
    numbered(MARK, STEP, STEP),
    numbered(MARK, SENT, SENT, MARK, STEP),
    # A checkpoint of its own has deleted the record that was copied.
    [MARK, replace(STEP, seq=2)],
]


@pytest.mark.parametrize(("copied", "histories"), [(True, COPIED), (False, OWN)])
def test_a_fork_that_has_recorded_nothing_is_told_by_its_marks(copied: bool, histories: list[list[Record]]) -> None:
    assert [is_copied(history) for history in histories] == [copied] * len(histories)


@pytest.mark.parametrize("behind", [(), (BROKEN,), (replace(MARK),), (replace(MARK), BROKEN)])
@pytest.mark.parametrize("call", [named, deed])
def test_a_fork_repeats_no_message_of_its_source_and_hands_all_else_out(call: Any, behind: tuple[Record, ...]) -> None:
    async def flow(ctx: Context) -> None:
        await call(ctx, "a")
        ctx.send("target", "note", "hello")
        ctx.publish("state", 1)
        await ctx.call(Call.named("test.child.v1"))
        ctx.send("target", "note", "its own")
        await named(ctx, "b")

    copy = Driver(flow, history=numbered(MARK, STEP, *behind))
    assert not any(isinstance(effect, NewMessage) for effect in copy.execution.effects)
    assert len(copy.execution.effects) == 1
    assert (copy.execution.known_fresh, copy.execution.known_effects) == (0, 0)
    assert copy.open == ["test.child.v1"]
    copy.complete("test.child.v1")
    assert any(isinstance(effect, NewMessage) for effect in copy.execution.effects)
    assert copy.again().execution.known_effects == len(copy.again().execution.effects) == 3
