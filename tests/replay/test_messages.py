"""A message record says that something arrived; who takes it is decided while the loop drains."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from perdure import Break, Context, Continue
from perdure.core.model.outputs import NewOutput, OutputKind
from perdure.core.model.record import RecordKind
from perdure.errors import DecodeError, InvalidName
from tests.replay.driver import Driver, named


@dataclass
class Approval:
    by: str
    granted: bool


def test_a_receive_waits_for_its_message_and_decodes_it() -> None:
    async def flow(ctx: Context) -> Any:
        approval = await ctx.receive("approval", Approval)
        return [type(approval).__name__, approval.by]

    run = Driver(flow)
    assert run.open == ["receive:approval"]
    run.message("approval", {"by": "ada", "granted": True})
    assert run.settled().result == ["Approval", "ada"]


def test_messages_wait_for_their_receive_in_the_order_of_arrival() -> None:
    async def flow(ctx: Context) -> Any:
        await named(ctx, "a")
        return [await ctx.receive("item", int) for _ in range(3)]

    run = Driver(flow)
    for number in (1, 2):
        run.message("item", number)
    run.complete("a")
    run.message("item", 3)
    assert run.settled().result == [1, 2, 3]


def test_names_do_not_mix() -> None:
    async def flow(ctx: Context) -> Any:
        return [await ctx.receive("b"), await ctx.receive("a")]

    run = Driver(flow)
    run.message("a", "for a")
    run.message("b", "for b")
    assert run.settled().result == ["for b", "for a"]


def test_several_receivers_are_served_in_the_order_in_which_they_asked() -> None:
    async def flow(ctx: Context) -> Any:
        return await asyncio.gather(*(ctx.receive("item") for _ in range(3)))

    run = Driver(flow)
    for number in (7, 8, 9):
        run.message("item", number)
    assert run.settled().result == [7, 8, 9]


def test_a_receive_that_times_out_leaves_the_message_for_the_next() -> None:
    async def flow(ctx: Context) -> Any:
        try:
            return await ctx.receive("item", timeout="5s")
        except TimeoutError as error:
            return [str(error), await ctx.receive("item")]

    run = Driver(flow)
    assert run.open == ["receive.timeout", "receive:item"]
    assert run.fire() == "receive.timeout"
    run.message("item", "late")
    text, item = run.settled().result
    assert "'item'" in text
    assert item == "late"


def test_a_message_in_time_calls_the_timer_off() -> None:
    async def flow(ctx: Context) -> Any:
        first = await ctx.receive("item", timeout="5s")
        return [first, await named(ctx, "a")]

    run = Driver(flow)
    run.message("item", "in time")
    assert run.open == ["a"]
    run.complete("a", "end")
    assert run.settled().result == ["in time", "end"]


def test_a_message_that_is_there_already_needs_no_timer() -> None:
    async def flow(ctx: Context) -> Any:
        await named(ctx, "a")
        return await ctx.receive("item", timeout="5s")

    run = Driver(flow)
    run.message("item", "early")
    run.complete("a")
    assert run.settled().result == "early"


def test_a_receive_under_asyncios_timeout_leaves_the_message_too() -> None:
    async def flow(ctx: Context) -> Any:
        try:
            async with asyncio.timeout(5):
                await ctx.receive("item")
        except TimeoutError:
            pass
        return await ctx.receive("item")

    run = Driver(flow)
    assert run.fire() == "timer"
    run.message("item", "late")
    assert run.settled().result == "late"


def test_a_cancelled_receive_takes_nothing() -> None:
    async def flow(ctx: Context) -> Any:
        given_up = ctx.receive("item", timeout="1h")
        await named(ctx, "a")
        given_up.cancel()
        return await ctx.receive("item")

    run = Driver(flow)
    run.complete("a")
    assert run.open == ["receive:item"], "the timer went with it"
    run.message("item", "kept")
    assert run.settled().result == "kept"


def aside(run: Driver) -> list[tuple[str, str]]:
    """Name of each message that was set aside, and number of its record."""
    return [(record.location, record.digest) for record in run.history if record.kind is RecordKind.ASIDE]


def test_a_message_of_the_wrong_type_is_set_aside_and_the_receive_goes_on_waiting() -> None:
    async def flow(ctx: Context) -> Any:
        return await ctx.receive("number", int)

    run = Driver(flow)
    run.message("number", "not one")
    assert run.open == ["receive:number"]
    assert aside(run) == [("number", "0")]
    run.message("number", 7)
    assert run.settled().result == 7


def test_messages_that_came_together_are_set_aside_one_by_one() -> None:
    async def flow(ctx: Context) -> Any:
        first = await ctx.receive("number", int)
        return [first, *await ctx.receive_many("number", int, limit=10)]

    run = Driver(flow)
    run.messages(("number", "no"), ("number", 1), ("number", "nor"), ("number", 2), ("number", "neither"))
    assert aside(run) == [("number", "0"), ("number", "2"), ("number", "4")]
    assert run.settled().result == [1, 2]


def test_receiving_many_does_not_wait_for_more_behind_a_message_that_is_set_aside() -> None:
    async def flow(ctx: Context) -> Any:
        await named(ctx, "a")
        return await ctx.receive_many("number", int, limit=10)

    run = Driver(flow)
    run.messages(("number", 1), ("number", "no"))
    run.complete("a")
    assert run.settled().result == [1]


def test_what_was_set_aside_stays_so_when_the_code_could_decode_it_by_now() -> None:
    async def strict(ctx: Context) -> Any:
        return [await ctx.receive("number", int), await ctx.receive("number", int)]

    async def lenient(ctx: Context) -> Any:
        return [await ctx.receive("number", int | str), await ctx.receive("number", int | str)]

    run = Driver(strict)
    run.message("number", "one")
    run.message("number", 2)
    later = Driver(lenient, history=run.history)
    assert later.open == ["receive:number"]
    later.message("number", "one")
    assert later.result == [2, "one"]


def test_a_message_that_was_received_and_does_not_fit_the_code_any_more_blocks_the_run() -> None:
    async def lenient(ctx: Context) -> Any:
        await ctx.receive("number", str)
        await named(ctx, "a")

    async def strict(ctx: Context) -> Any:
        await ctx.receive("number", int)
        await named(ctx, "a")

    run = Driver(lenient)
    run.message("number", "one")
    with pytest.raises(DecodeError, match="message 'number' to run 'run-1'"):
        Driver(strict, history=run.history)


def test_a_question_that_cannot_be_decoded_is_answered_with_the_error() -> None:
    async def flow(ctx: Context) -> Any:
        question = await ctx.receive_question("quote", int)
        question.reply("fine")
        return question.value

    run = Driver(flow)
    run.message("quote~ask", {"key": "k1", "value": "x"})
    outputs = [one for one in run.execution.effects if isinstance(one, NewOutput)]
    assert [(one.kind, one.name, one.failed) for one in outputs] == [
        (OutputKind.SET_ASIDE, "", True),
        (OutputKind.REPLY, "k1", True),
    ]
    run.message("quote~ask", {"key": "k2", "value": 3})
    assert run.settled().result == 3


def test_a_message_set_aside_inside_of_a_loop_is_let_go_with_its_iteration() -> None:
    async def body(ctx: Context, total: int) -> Continue[int] | Break[int]:
        number = await ctx.receive("number", int)
        return Break(total) if number < 0 else Continue(total + number)

    async def flow(ctx: Context) -> Any:
        return await ctx.loop(0, body, commit_every=2)

    run = Driver(flow)
    for value in ("no", 1, "nor", 2, "neither"):
        run.message("number", value)
    assert aside(run) == [("number", str(run.history[-2].seq))]
    run.message("number", -1)
    assert run.settled().result == 3


def test_a_message_that_is_not_received_is_no_divergence() -> None:
    async def flow(ctx: Context) -> Any:
        return await named(ctx, "a")

    run = Driver(flow)
    run.message("unexpected", 1)
    run.complete("a", "end")
    assert [record.kind for record in run.history] == [RecordKind.MESSAGE, RecordKind.STEP]
    assert run.settled().result == "end"


def test_a_message_without_content_is_none() -> None:
    async def flow(ctx: Context) -> Any:
        return await ctx.receive("ping")

    run = Driver(flow)
    run.execution.record(RecordKind.MESSAGE, "ping", None, 0)
    assert run.result is None


def test_a_name_that_cannot_be_one_is_refused() -> None:
    async def flow(ctx: Context) -> Any:
        await ctx.receive("a/b")

    assert isinstance(Driver(flow).error, InvalidName)
