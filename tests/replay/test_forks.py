"""Replay of what a fork has copied: it led to nothing of the fork's own, and its messages were sent by its source."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from perdure import Call, Context
from perdure.core.model.record import NewMessage, Record, RecordKind, is_copied
from perdure.replay.copied_past import copied_past
from perdure.replay.execution import Execution
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


FAILED = replace(STEP, location="b", payload='{"type":"ConnectionError","message":"x"}', failed=True)
CANCELLED = Record(seq=0, kind=RecordKind.CANCEL, location="", payload='"stop"', at=START)
REPEATING: Any = partial(Execution, repeats_past=True)


@pytest.mark.parametrize(
    ("history", "size"),
    [
        (numbered(MARK, STEP, FAILED), 2),
        (numbered(STEP, MARK, SENT, SENT, MARK, FAILED), 5),
        # A fork of a fork.
        (numbered(MARK, STEP, replace(MARK, payload="{}"), STEP, FAILED), 4),
        (numbered(STEP, FAILED), 0),
        # A checkpoint of its own has deleted a record.
        (numbered(STEP, MARK, STEP, FAILED)[1:], 0),
        ([MARK, replace(FAILED, seq=2)], 0),
        (numbered(STEP, CANCELLED, MARK, STEP, FAILED), 0),
        # It has undone a copied step, or the source has.
        (numbered(MARK, STEP, FAILED, replace(STEP, location="a/~undo")), 0),
        (numbered(MARK, STEP, replace(STEP, location="a/~undo"), MARK, FAILED, replace(STEP, location="a/~undo")), 4),
        (numbered(MARK, STEP, FAILED, replace(FAILED, location="a/~undo")), 2),
    ],
)
def test_the_past_of_a_fork_is_told_by_its_marks(history: list[Record], size: int) -> None:
    assert [*copied_past(history)] == history[:size]


def test_another_attempt_at_a_fork_repeats_its_past_in_the_order_of_its_source() -> None:
    drawn: list[tuple[str, str]] = []

    async def flow(ctx: Context) -> None:
        async def branch(name: str) -> None:
            await named(ctx, name)
            ctx.send("target", "note", name)
            drawn.append((name, str(ctx.uuid())))
            await named(ctx, f"{name}{name}")

        first, second = asyncio.create_task(branch("a")), asyncio.create_task(branch("b"))
        await asyncio.gather(first, second)

    digest = Driver(flow).operation("b").digest
    copies = [STEP, MARK, replace(STEP, location="b", digest=digest), replace(STEP, location="bb"), MARK]
    stumbled = Record(seq=0, kind=RecordKind.ATTEMPT, location="aa", payload="{}", failed=True, at=START, attempts=2)
    history = numbered(*copies[:3], stumbled, *copies[3:], replace(FAILED, location="aa"), SENT)
    copy = Driver(flow, history=history[:6])
    assert copy.open == ["aa"]
    first, drawn[:] = list(drawn), []
    other = Driver(flow, history=history, attempt=2, make=REPEATING)
    assert drawn == first
    # All attempts at the open step are left, and the message that has come since is there.
    assert [one.location for one in other.history[8:]] == ["a", "", "b", "bb", "", "m"]
    assert {one.run_attempt for one in other.history[8:]} == {2}
    assert not other.execution.effects
    drawn.clear()
    later = other.again()
    assert drawn == first
    assert later.open == other.open == ["aa"]
    assert later.history == other.history
