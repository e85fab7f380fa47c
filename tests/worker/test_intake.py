from __future__ import annotations

import asyncio
from typing import Any

from perdure import Context
from perdure.core.codec.codec import Codec
from perdure.core.model.record import Message, RecordKind
from perdure.core.model.run import Reason
from perdure.core.model.turn import ContinueAsNew, Lease, Park
from perdure.worker.run.turn_draft import TurnDraft
from perdure.worker.run.workflow_run import take_in
from perdure.workflow.definition import Call
from tests.replay.driver import Driver, named


def entry(seq: int, kind: RecordKind, name: str = "") -> Message:
    return Message(run_id="run-1", seq=seq, kind=kind, name=name, payload="1", failed=False, key=f"k{seq}", sent_at=0)


def test_an_order_that_comes_after_the_end_of_an_attempt_does_not_pass_for_the_message_before_it() -> None:
    async def flow(ctx: Context) -> Any:
        await ctx.receive("go")
        raise ValueError("this attempt failed, another may follow")

    run, draft = Driver(flow), TurnDraft(Codec())
    assert take_in(run.execution, draft, [entry(1, RecordKind.MESSAGE, "go")], 0, 0) == 1
    assert take_in(run.execution, draft, [entry(2, RecordKind.MESSAGE, "late"), entry(3, RecordKind.RESUME)], 1, 0) == 1
    assert (draft.read, draft.unrecorded) == (1, 0)


def test_messages_that_are_taken_in_together_are_recorded_though_the_first_of_them_is_the_end() -> None:
    async def flow(ctx: Context) -> Any:
        await ctx.receive("go")
        raise ValueError("this attempt failed, another may follow")

    run, draft = Driver(flow), TurnDraft(Codec())
    entries = [entry(1, RecordKind.MESSAGE, "go"), entry(2, RecordKind.MESSAGE, "late"), entry(3, RecordKind.RESUME)]
    assert take_in(run.execution, draft, entries, 0, 0) == 3
    assert [each.location for each in run.execution.unsaved] == ["go", "late"]
    assert (draft.read, draft.unrecorded) == (2, 3)
    # Another attempt finds both.
    again = Driver(flow, history=run.execution.unsaved, attempt=2)
    assert [name for name, _, _ in again.execution.unreceived()] == ["late"]


def test_a_cancellation_that_was_taken_back_and_is_handed_over_again_does_not_count() -> None:
    async def flow(ctx: Context) -> Any:
        try:
            await ctx.receive("never")
        except asyncio.CancelledError:
            ctx.uncancel()
        await ctx.receive("go")
        raise ValueError("this attempt failed, another may follow")

    run, draft = Driver(flow), TurnDraft(Codec())
    stop = entry(1, RecordKind.CANCEL)
    assert take_in(run.execution, draft, [stop], 0, 0) == 1
    assert take_in(run.execution, draft, [stop], 1, 0) == 1
    assert not run.execution.cancel_requested
    assert take_in(run.execution, draft, [stop, entry(2, RecordKind.MESSAGE, "go"), stop], 1, 0) == 2
    assert run.execution.outcome is not None
    assert not run.execution.cancel_requested
    # Another one is too late for this attempt, and no other may follow.
    take_in(run.execution, draft, [entry(3, RecordKind.CANCEL)], 2, 0)
    assert run.execution.cancel_requested


def test_an_order_leaves_no_record_and_is_read() -> None:
    async def flow(ctx: Context) -> Any:
        return await named(ctx, "work")

    run, draft = Driver(flow), TurnDraft(Codec())
    assert take_in(run.execution, draft, [entry(1, RecordKind.PAUSE)], 0, 0) == 1
    assert (draft.unrecorded, run.execution.unsaved) == (1, [])


def test_what_comes_after_the_decision_to_begin_anew_stays_unread_unless_the_run_does_begin_anew() -> None:
    async def flow(ctx: Context) -> Any:
        await ctx.receive("go")
        ctx.continue_as_new(Call.named("next.v1"))

    run, draft, lease = Driver(flow), TurnDraft(Codec()), Lease("run-1", 1, "")
    assert take_in(run.execution, draft, [entry(1, RecordKind.MESSAGE, "go")], 0, 0) == 1
    assert take_in(run.execution, draft, [entry(2, RecordKind.MESSAGE, "late"), entry(3, RecordKind.EVICT)], 1, 0) == 3
    assert [
        draft.turn(lease, (), next).read for next in (Park(0, Reason.PAUSED, 3), ContinueAsNew("next.v1", "{}", 3))
    ] == [
        1,
        3,
    ]


def test_what_came_with_the_message_that_led_to_beginning_anew_is_carried_over() -> None:
    async def flow(ctx: Context) -> Any:
        await ctx.receive("go")
        ctx.continue_as_new(Call.named("next.v1"))

    run, draft = Driver(flow), TurnDraft(Codec())
    entries = [entry(1, RecordKind.MESSAGE, "go"), entry(2, RecordKind.MESSAGE, "late")]
    assert take_in(run.execution, draft, entries, 0, 0) == 2
    assert [name for name, _, _ in run.execution.unreceived()] == ["late"]
