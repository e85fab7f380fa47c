"""Long histories: the calls that each record costs, the operations that stay in memory, and the fast path of results.

`Driver` records by `Execution._apply`, and replay takes the fast path, `Execution._apply_result`. So every law, and
every test that ends with `settled`, compares the two.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings
from msgspec import Struct

from perdure import Context
from perdure.core.codec.codec import Codec
from perdure.core.codec.failure import ErrorTypes
from perdure.core.model.record import Record, RecordKind
from perdure.errors import DecodeError
from perdure.replay.execution import Execution
from perdure.replay.operations import RunOrigin
from tests.replay.driver import START, Driver, codec, named
from tests.replay.generation import programs, tapes
from tests.replay.nodes import Node
from tests.replay.recording import record, recording_of, verify


async def number(value: int) -> int:
    return value


async def many(ctx: Context, count: int) -> int:
    total = 0
    for value in range(count):
        total += await ctx.step(number, value)
    await ctx.receive("go")
    return total


def history_of_steps(count: int) -> list[Record]:
    return [
        Record(
            seq=seq, kind=RecordKind.STEP, location=f"number#{seq + 1}" if seq else "number", payload=str(seq),
            at=START + seq, started_at=START + seq, digest=codec.digest(((seq,), {}), "number"), attempts=1,
        )
        for seq in range(count)
    ]  # fmt: skip


def execution_of(function: Callable[[Context], Any], history: list[Record], decoding: Codec = codec) -> Execution:
    origin = RunOrigin(run_id="run-1", type="test.flow.v1", started_at=START, seed="seed", generation=1, attempt=1)
    execution = Execution(
        function, Any, origin, history, codec=decoding, errors=ErrorTypes(), logger=logging.getLogger("tests.replay")
    )
    execution.begin()
    return execution


def calls_of(act: Callable[[], object]) -> int:
    """Number of calls of functions in Python."""
    count = 0

    def note(_frame: FrameType, event: str, _argument: Any) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        act()
    finally:
        sys.setprofile(before)
    return count


def test_a_recorded_result_costs_a_bounded_number_of_calls_however_long_the_history_is() -> None:
    few, more = history_of_steps(1000), history_of_steps(3000)
    Driver(many, 1000, history=few)  # so that functions are inspected and decoders made
    calls = [calls_of(partial(Driver, many, len(history), history=history)) for history in (few, more)]
    # 18 at the time of writing, and 23 without the fast path.
    assert (calls[1] - calls[0]) / 2000 < 19


def test_closed_operations_are_forgotten_while_a_history_is_replayed() -> None:
    execution = execution_of(lambda ctx: many(ctx, 5000), history_of_steps(5000))
    most = 0

    def look() -> bool:
        nonlocal most
        most = max(most, len(execution.fresh), len(execution.asked or ()))
        return True

    assert execution.replay(look)
    assert 0 < most <= 128
    assert execution.awaited_messages() == ["go"]
    assert execution.evict()


def test_open_operations_are_not_forgotten_and_each_knows_the_record_that_led_to_it() -> None:
    async def flow(ctx: Context) -> None:
        waiting: list[Any] = []
        for lap in range(300):
            await named(ctx, "short", lap)
            if lap % 10 == 0:
                waiting.append(named(ctx, "long", lap))
            elif lap % 10 == 5:
                waiting.append(ctx.sleep(3600 + lap))
        await asyncio.gather(*waiting)

    run = Driver(flow)
    for lap in range(300):
        run.complete(f"short#{lap + 1}" if lap else "short", lap)
    again = run.again().execution
    opened = again.open_operations()
    assert len(opened) == 60
    assert [operation for operation in again.fresh if operation.open] == opened
    assert again.known_fresh == len(again.fresh) < 300
    # The record of lap n has the number n, and led to the operation that the lap asks for.
    asked = {f"long#{n // 10 + 1}" if n else "long": n for n in range(0, 300, 10)}
    asked |= {f"sleep#{n // 10 + 1}" if n > 5 else "sleep": n for n in range(5, 300, 10)}
    assert again.asked == asked


@pytest.mark.usefixtures("_quiet")
def test_the_law_of_replay_holds_if_closed_operations_are_forgotten_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    forgotten = 0
    forget = Execution._forget_closed

    def counting(self: Execution, asked: dict[str, int]) -> None:
        nonlocal forgotten
        before = len(self.fresh)
        forget(self, asked)
        forgotten += before - len(self.fresh)

    monkeypatch.setattr(Execution, "_room", 0)
    monkeypatch.setattr(Execution, "_spare", 0)
    monkeypatch.setattr(Execution, "_forget_closed", counting)

    @settings(max_examples=40)
    @given(programs(), tapes(200))
    def law(program: Node, events: list[int]) -> None:
        play = record(program, events)
        play.close()
        assert verify(recording_of(play)) == ""

    law()
    assert forgotten > 100


@pytest.fixture
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="tests.replay")


class Price(Struct):
    amount: int


def quote() -> Price:
    raise AssertionError


def test_a_result_that_does_not_fit_its_type_any_more_is_described_as_before() -> None:
    async def flow(ctx: Context) -> None:
        for _ in range(2):
            await ctx.step(quote)

    run = Driver(flow)
    run.complete("quote", {"amount": 3})
    run.complete("quote#2", {"amount": 4})
    spoilt = [run.history[0], *[_with_payload(one, '{"amount":"four"}') for one in run.history[1:]]]
    with pytest.raises(DecodeError, match=r"cannot decode result of step 'quote#2' of run 'run-1' as Price"):
        run.again(spoilt)


def test_strict_decoding_is_strict_about_recorded_results() -> None:
    async def flow(ctx: Context) -> None:
        for _ in range(2):
            await ctx.step(quote)

    run = Driver(flow)
    run.complete("quote", {"amount": 3})
    run.complete("quote#2", {"amount": 4})
    spoilt = [run.history[0], *[_with_payload(one, '{"amount":4,"tax":1}') for one in run.history[1:]]]
    execution = execution_of(flow, spoilt, Codec(strict=True))
    with pytest.raises(DecodeError, match=r"tax is lost \(strict\)"):
        execution.replay(lambda: True)
    assert execution.evict()


def _with_payload(one: Record, payload: str) -> Record:
    return Record(
        seq=one.seq, kind=one.kind, location=one.location, payload=payload, at=one.at, digest=one.digest, attempts=1
    )
