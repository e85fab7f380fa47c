"""Channels, several names, batches and questions; and what a workflow sends and shows, each leaving it once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure import Channel, Context, Question, workflow
from perdure.core.model.outputs import NewOutput, OutputKind
from perdure.core.model.record import Message, NewMessage, RecordKind
from perdure.errors import BadArguments, EncodeError, InvalidId
from perdure.workflow.runtime import TopicSubscription
from tests.replay.driver import Driver, named

numbers = Channel("number", int)
words = Channel("word", str)
quote = Question("quote", str, int)


@workflow("test.anew.v1")
async def anew(ctx: Context) -> None: ...


def test_a_channel_decodes_to_its_type() -> None:
    async def flow(ctx: Context) -> Any:
        return [await ctx.receive(numbers), await ctx.receive(words, timeout=5)]

    run = Driver(flow)
    run.message("word", "w")
    run.message("number", 3)
    assert run.settled().result == [3, "w"]


def test_several_channels_are_received_in_the_order_of_arrival() -> None:
    async def flow(ctx: Context) -> Any:
        await named(ctx, "first")
        received = [await ctx.receive_any(words, numbers) for _ in range(4)]
        return [[one.name, one.value] for one in received]

    run = Driver(flow)
    run.message("number", 1)
    run.message("word", "a")
    run.message("number", 2)
    run.complete("first")
    assert sorted(run.open) == ["receive:number", "receive:word"]
    run.message("word", "b")
    assert run.settled().result == [["number", 1], ["word", "a"], ["number", 2], ["word", "b"]]


def test_a_receive_of_several_channels_takes_one_message_and_leaves_the_next() -> None:
    async def flow(ctx: Context) -> Any:
        first = await ctx.receive_any(words, numbers)
        return [first.value, await ctx.receive(words), await ctx.receive(numbers)]

    run = Driver(flow)
    run.message("number", 1)
    run.message("number", 2)
    run.message("word", "w")
    assert run.settled().result == [1, "w", 2]


def test_a_receive_goes_on_after_a_message_that_does_not_fit() -> None:
    async def flow(ctx: Context) -> Any:
        return [await ctx.receive(numbers), await ctx.receive(words)]

    run = Driver(flow)
    run.message("number", "three")
    assert run.open == ["receive:number"]
    run.message("number", 3)
    run.message("word", "w")
    assert run.settled().result == [3, "w"]
    assert run.again().result == [3, "w"]


def test_a_receive_of_several_channels_may_time_out() -> None:
    async def flow(ctx: Context) -> Any:
        try:
            await ctx.receive_any(words, numbers, timeout=5)
        except TimeoutError as error:
            return str(error)
        return None

    run = Driver(flow)
    run.fire()
    assert run.settled().result == "no message 'word' or 'number' arrived in time"


def test_a_batch_without_a_timeout_is_what_there_is() -> None:
    async def flow(ctx: Context) -> Any:
        await named(ctx, "first")
        return [await ctx.receive_many(numbers, limit=3), await ctx.receive_many(numbers, limit=3)]

    run = Driver(flow)
    for number in range(4):
        run.message("number", number)
    run.complete("first")
    assert run.settled().result == [[0, 1, 2], [3]]


def test_a_batch_is_all_that_arrived_together() -> None:
    async def flow(ctx: Context) -> Any:
        return [await ctx.receive_many(numbers, limit=3), await ctx.receive_many(numbers, limit=3)]

    run = Driver(flow)
    run.messages(*(("number", number) for number in range(5)))
    assert run.settled().result == [[0, 1, 2], [3, 4]]


def test_a_batch_leaves_others_what_they_have_waited_for() -> None:
    async def flow(ctx: Context) -> Any:
        many, one = ctx.receive_many(numbers, limit=9), ctx.receive(numbers)
        taken = await asyncio.gather(many, one)
        return [*taken, await ctx.receive(numbers)]

    run = Driver(flow)
    run.messages(("number", 0), ("number", 1), ("number", 2), ("word", "w"))
    run.message("number", 3)
    # The receive was called first: a coroutine begins when it is awaited.
    assert run.settled().result == [[1, 2], 0, 3]


def test_a_batch_is_over_where_all_that_is_left_is_awaited_by_others() -> None:
    async def flow(ctx: Context) -> Any:
        async def single() -> int:
            return await ctx.receive(numbers)

        return await asyncio.gather(ctx.receive_many(numbers, limit=9), single())

    run = Driver(flow)
    run.messages(("number", 0), ("number", 1))
    assert run.settled().result == [[0], 1]


def test_what_arrived_with_the_message_that_ended_the_workflow_is_not_given_to_code_that_is_gone() -> None:
    async def flow(ctx: Context) -> None:
        listening = asyncio.create_task(ctx.receive_many(words, limit=1))
        await ctx.receive(numbers)
        assert not listening.done()
        ctx.continue_as_new(anew())

    run = Driver(flow)
    run.messages(("number", 1), ("word", "w"))
    assert run.ended.renewed is not None
    assert [(name, payload) for name, _, payload in run.execution.unreceived()] == [("word", '"w"')]


async def _waits_for_both(ctx: Context, receiving: asyncio.Future[Any]) -> None:
    await asyncio.wait([receiving, named(ctx, "step")], return_when=asyncio.FIRST_COMPLETED)


async def _receives(ctx: Context) -> None:
    await ctx.receive(words)


async def _leaves_open(ctx: Context, how: str) -> list[asyncio.Future[Any]]:
    receiving: list[asyncio.Future[Any]] = []
    if how == "task":
        receiving.append(asyncio.create_task(_receives(ctx)))
        await asyncio.sleep(0)
    elif how != "nothing":
        receiving.append(ctx.receive(words))
    if how == "waited for":
        await _waits_for_both(ctx, receiving[0])
    elif how == "shielded":
        await _waits_for_both(ctx, asyncio.shield(receiving[0]))
    return receiving


@pytest.mark.parametrize("how", ["nothing", "unawaited", "task", "waited for", "shielded"])
def test_what_comes_after_the_decision_to_begin_anew_is_not_given_to_a_receive_that_was_left_open(how: str) -> None:
    async def flow(ctx: Context) -> None:
        kept = await _leaves_open(ctx, how)
        assert not any(one.done() for one in kept)
        ctx.continue_as_new(anew())

    run = Driver(flow)
    if "step" in run.open:
        run.complete("step")
    assert run.ended.renewed is not None
    run.execution.carry(
        Message(
            run_id="run-1", seq=1, kind=RecordKind.MESSAGE, name="word", payload='"w"', failed=False, key="k", sent_at=0
        )
    )
    assert [(name, payload) for name, _, payload in run.execution.unreceived()] == [("word", '"w"')]


def test_a_race_takes_one_of_the_messages_that_arrived_together() -> None:
    async def flow(ctx: Context) -> Any:
        branches: dict[str, Any] = {"word": ctx.receive(words), "number": ctx.receive(numbers)}
        won = await ctx.race(branches)
        return [won.winner, won.value, await ctx.receive(words if won.winner == "number" else numbers)]

    run = Driver(flow)
    run.messages(("number", 1), ("word", "w"))
    assert run.settled().result == ["number", 1, "w"]


def test_messages_recorded_one_by_one_are_received_as_they_were_then() -> None:
    async def flow(ctx: Context) -> Any:
        first = await ctx.receive_many(numbers, limit=9)
        await named(ctx, f"took {len(first)}")
        return [first, await ctx.receive_many(numbers, limit=9)]

    run = Driver(flow)
    run.message("number", 1)
    run.message("number", 2)
    run.complete("took 1")
    assert run.settled().result == [[1], [2]]


def test_a_batch_with_a_timeout_waits_until_it_is_full_or_the_time_is_over() -> None:
    async def flow(ctx: Context) -> Any:
        full = await ctx.receive_many(numbers, limit=2, timeout=10)
        part = await ctx.receive_many(numbers, limit=5, timeout=10)
        return [full, part, await ctx.receive_many(numbers, limit=1, timeout=10)]

    run = Driver(flow)
    run.message("number", 1)
    run.message("number", 2, after=1)
    run.message("number", 3, after=1)
    run.fire()
    run.fire()
    assert run.settled().result == [[1, 2], [3], []]


def test_a_question_is_answered_under_its_key() -> None:
    async def flow(ctx: Context) -> Any:
        asked = await ctx.receive_question(quote)
        asked.reply(len(asked.value))
        return asked.value

    run = Driver(flow)
    run.message("quote~ask", {"key": "k1", "value": "books"})
    assert run.execution.effects == [
        NewOutput(kind=OutputKind.REPLY, name="k1", payload="5", key="reply:k1"),
    ]
    assert run.settled().result == "books"


def test_what_a_workflow_sends_and_shows_leaves_it_once() -> None:
    async def flow(ctx: Context) -> Any:
        ctx.publish("progress", 0)
        ctx.emit("log", "begun")
        await named(ctx, "work")
        ctx.publish("progress", 100)
        ctx.emit("log", "done")
        ctx.send("other", words, "hello")
        ctx.send("other", "word", "keyed", key="mine")
        await named(ctx, "more")

    run = Driver(flow)
    first = [
        NewOutput(kind=OutputKind.STATE, name="progress", payload="0", key="state:progress"),
        NewOutput(kind=OutputKind.STREAM, name="log", payload='"begun"', key="run-1:1:~emit"),
    ]
    assert run.execution.effects == first
    run.complete("work")
    second = [
        NewOutput(kind=OutputKind.STATE, name="progress", payload="100", key="state:progress"),
        NewOutput(kind=OutputKind.STREAM, name="log", payload='"done"', key="run-1:1:~emit#2"),
        NewMessage(run_id="other", name="word", payload='"hello"', key="run-1:1:~send"),
        NewMessage(run_id="other", name="word", payload='"keyed"', key="mine"),
    ]
    assert run.execution.effects == first + second
    again = run.again()
    assert again.execution.effects == first + second
    # With its record, everything that it led to was written; a worker drops what is known.
    assert again.execution.known_effects == len(first + second)


def test_a_run_listens_for_a_correlation_value_from_its_first_receive_on() -> None:
    async def flow(ctx: Context) -> Any:
        return [await ctx.receive("paid", int, correlation="o-1") for _ in range(2)]

    run = Driver(flow)
    assert run.execution.effects == [TopicSubscription("paid@o-1", True)]
    assert run.open == ["receive:paid@o-1"]
    run.message("paid@o-1", 1)
    run.message("paid@o-1", 2)
    assert run.execution.effects == [TopicSubscription("paid@o-1", True)]
    assert run.settled().result == [1, 2]


@pytest.mark.parametrize("attempt", ["publish", "emit", "send"])
def test_what_cannot_be_stored_is_refused_where_it_is_said(attempt: str) -> None:
    async def flow(ctx: Context) -> Any:
        if attempt == "send":
            ctx.send("other", "name", object())
        else:
            (ctx.publish if attempt == "publish" else ctx.emit)("name", object())

    run = Driver(flow)
    assert isinstance(run.error, EncodeError)
    assert run.execution.effects == []


def test_receiving_nothing_makes_no_sense() -> None:
    async def nothing(ctx: Context) -> Any:
        await ctx.receive_any()

    async def none(ctx: Context) -> Any:
        await ctx.receive_many(numbers, limit=0)

    assert isinstance(Driver(nothing).error, BadArguments)
    assert isinstance(Driver(none).error, BadArguments)


def test_a_key_that_cannot_be_one_is_refused_where_it_is_given() -> None:
    async def flow(ctx: Context) -> Any:
        ctx.send("other", "word", "w", key=" kept:1:1")

    run = Driver(flow)
    assert isinstance(run.error, InvalidId)
    assert run.execution.effects == []
