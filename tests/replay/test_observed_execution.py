"""An observer is told of each record before the code sees it, and the replay is the same as without it."""

from __future__ import annotations

from functools import partial
from typing import Any

from perdure import Context
from perdure.core.model.record import Record
from perdure.replay.observed_execution import ObservedExecution
from tests.replay.driver import Driver, named


def test_an_observer_is_told_of_each_record_before_the_code_goes_on() -> None:
    trace: list[Any] = []

    async def flow(ctx: Context) -> int:
        trace.append("begins")
        first = await named(ctx, "a")
        trace.append(first)
        trace.append(await ctx.receive("go"))
        trace.append(await ctx.receive("go"))
        return len(trace)

    def note(record: Record | None) -> None:
        trace.append(None if record is None else record.location)

    run = Driver(flow)
    run.complete("a", 1)
    run.messages(("go", 2), ("go", 3))
    assert run.result == 4
    trace.clear()
    again = Driver(flow, history=run.history, make=partial(ObservedExecution, observer=note))
    # Messages of a batch have all arrived when the first is received.
    assert trace == [None, "begins", "a", 1, "go", "go", 2, 3]
    assert again.result == len(trace)
