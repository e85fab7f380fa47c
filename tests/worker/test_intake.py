from __future__ import annotations

from typing import Any

from perdure import Context
from perdure.core.codec import Codec
from perdure.core.model import Kind, Message
from perdure.worker.draft import Draft
from perdure.worker.intake import take_in
from tests.replay.driver import Driver, named


def entry(seq: int, kind: Kind, name: str = "") -> Message:
    return Message(run_id="run-1", seq=seq, kind=kind, name=name, payload="1", failed=False, key=f"k{seq}", sent_at=0)


def test_an_order_that_comes_after_the_end_of_an_attempt_does_not_pass_for_the_message_before_it() -> None:
    async def flow(ctx: Context) -> Any:
        await ctx.receive("go")
        raise ValueError("this attempt failed, another may follow")

    run, draft = Driver(flow), Draft(Codec())
    entries = [entry(1, Kind.MESSAGE, "go"), entry(2, Kind.MESSAGE, "late"), entry(3, Kind.RESUME)]
    assert take_in(run.execution, draft, entries, 0, 0) == 1
    assert (draft.read, draft._unrecorded) == (1, 0)


def test_an_order_leaves_no_record_and_is_read() -> None:
    async def flow(ctx: Context) -> Any:
        return await named(ctx, "work")

    run, draft = Driver(flow), Draft(Codec())
    assert take_in(run.execution, draft, [entry(1, Kind.PAUSE)], 0, 0) == 1
    assert (draft._unrecorded, run.execution.unsaved) == (1, [])
