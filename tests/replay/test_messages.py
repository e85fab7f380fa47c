"""A message record says that something arrived; who takes it is decided while the loop drains."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from perdure import Context
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


def test_a_message_of_the_wrong_type_is_an_error_where_it_is_received() -> None:
    async def flow(ctx: Context) -> Any:
        try:
            await ctx.receive("number", int)
        except DecodeError as error:
            return str(error)
        return None

    run = Driver(flow)
    run.message("number", "not one")
    assert "message 'number' to run 'run-1'" in run.settled().result


def test_a_message_that_nobody_receives_is_no_divergence() -> None:
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
