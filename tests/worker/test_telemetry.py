"""What a worker tells listeners about its work."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextvars import ContextVar
from pathlib import Path

from perdure import Context, Engine, Retry, activity, step, workflow
from perdure.client.session import session_of
from perdure.core.model.record import RecordKind
from perdure.core.model.turn import Turn, TurnOutcome
from perdure.core.telemetry import Listener, ObservedAttempt, ObservedRun

trace: ContextVar[str] = ContextVar("trace", default="none")


class Tracer(Listener):
    def __init__(self) -> None:
        self.recorded: list[tuple[str, int]] = []

    def attempt_started(self, held: ObservedRun, attempt: ObservedAttempt) -> None:
        trace.set(f"{held.scope} {attempt.operation.location} {attempt.number}")

    def committed(
        self, turns: Sequence[tuple[ObservedRun, Turn]], verdicts: Sequence[TurnOutcome], now: int, seconds: float
    ) -> None:
        self.recorded += [
            (record.location, record.attempts)
            for (_, turn), verdict in zip(turns, verdicts, strict=True)
            if verdict is TurnOutcome.APPLIED
            for record in turn.records
            if record.kind in (RecordKind.STEP, RecordKind.ATTEMPT)
        ]


@step(retry=Retry.fixed("1ms", attempts=2))
async def on_loop() -> str:
    if trace.get().endswith("1"):
        raise OSError
    return trace.get()


@step
def in_thread() -> str:
    return trace.get()


@step(at_most_once=True)
async def once() -> str:
    return trace.get()


@activity("telemetry.charge.v1")
async def charge() -> str:
    return trace.get()


def write(connection: sqlite3.Connection) -> str:
    connection.execute("CREATE TABLE written (number INTEGER)")
    return "written"


@workflow("telemetry.order.v1")
async def order(ctx: Context) -> list[str]:
    found = [await ctx.step(on_loop), await ctx.step(in_thread), await ctx.step(once), await ctx.call(charge())]
    return [*found, await ctx.transaction(write), trace.get()]


async def test_a_listener_sets_variables_of_each_attempt_and_hears_of_each_record_once(tmp_path: Path) -> None:
    async with Engine(f"sqlite:///{tmp_path}/runs.db", [order, charge]) as engine:
        tracer = Tracer()
        detach = session_of(engine).system.telemetry.attach(tracer)
        async with engine.worker():
            result = await (await engine.start(order())).result()
        detach()
    assert result == [
        "run on_loop 2",
        "run in_thread 1",
        "run once 1",
        "activity telemetry.charge.v1 1",
        "written",
        "none",
    ]
    # An activity that succeeds has an outcome, and no record.
    assert tracer.recorded == [("on_loop", 1), ("on_loop", 2), ("in_thread", 1), ("once", 1), ("write", 1)]
