"""States, streams, questions and broadcasts of runs."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from perdure import (
    Channel,
    Context,
    Engine,
    Question,
    RunCancelled,
    RunFailed,
    RunFinished,
    RunNotFound,
    Status,
    StreamItem,
    UsageError,
    workflow,
)
from perdure.errors import DecodeError, EncodeError, EngineClosed, InvalidDuration, InvalidName
from tests.helpers import eventually
from tests.stage import Stage, until


@dataclass
class Order:
    id: str
    cents: int


async def think(number: int) -> int:
    return number * number


quote = Question("quote", Order, int)
stop = Channel("stop", str)


@workflow("outputs.tokens.v1")
async def tokens(ctx: Context, count: int) -> int:
    ctx.publish("phase", "thinking")
    ctx.publish("order", Order("o-1", 1))
    for number in range(count):
        ctx.emit("tokens", await ctx.step(think, number))
    ctx.publish("phase", "done")
    ctx.emit("log", "finished")
    return count


@workflow("outputs.paused.v1")
async def paused(ctx: Context) -> str:
    number = 0
    while await ctx.receive("more", bool):
        ctx.emit("tokens", number)
        number += 1
    ctx.emit("tokens", number)
    return "over"


@workflow("outputs.shop.v1")
async def shop(ctx: Context) -> int:
    served = 0
    while True:
        asked = await ctx.receive_question(quote)
        if asked.value.cents < 0:
            raise ValueError("no such price")
        if asked.value.cents == 0:
            return served
        served += 1
        asked.reply(asked.value.cents * 2)


@workflow("outputs.last_words.v1")
async def last_words(ctx: Context) -> str:
    asked = await ctx.receive_question("why", str)
    asked.reply(f"because of {asked.value}")
    return "answered"


@workflow("outputs.listener.v1")
async def listener(ctx: Context, room: str) -> str:
    return await ctx.receive(stop, correlation=room)


WORKFLOWS = (tokens, paused, shop, last_words, listener)


async def items_of(run: Any, name: str = "tokens", **options: Any) -> list[StreamItem[Any]]:
    return [item async for item in run.stream(name, **options)]


async def test_a_state_is_read_from_outside_as_the_type_that_is_asked_for(stage: Stage) -> None:
    engine = stage.engine(*WORKFLOWS)
    async with engine.worker():
        run = await engine.start(tokens(2))
        await run.result("20s")
        assert await run.state("phase", str) == "done"
        assert await run.state("order", Order) == Order("o-1", 1)
        assert await run.states() == {"order": {"id": "o-1", "cents": 1}, "phase": "done"}
        assert await run.state("never", str) is None
        assert await run.state("never", str, default="none yet") == "none yet"
        with pytest.raises(DecodeError, match="phase"):
            await run.state("phase", int)


async def test_a_state_is_waited_for_by_its_value_or_by_a_function(stage: Stage) -> None:
    @workflow("outputs.phases.v1")
    async def phases(ctx: Context) -> None:
        while (phase := await ctx.receive("phase", int)) >= 0:
            ctx.publish("phase", phase)

    async def no_predicate(phase: int) -> bool:
        return True

    engine = stage.engine(phases)
    async with engine.worker():
        run = await engine.start(phases())
        waits = [
            asyncio.create_task(run.wait_state("phase", wanted, int, timeout="20s"))
            for wanted in (2, lambda phase: phase > 1)
        ]
        anything = asyncio.create_task(run.wait_state("phase"))
        await run.send("phase", 1)
        assert await anything == 1
        with pytest.raises(TimeoutError, match="did not publish the awaited 'phase' within '10ms'"):
            await run.wait_state("phase", 2, timeout="10ms")
        await run.send("phase", 2)
        assert await asyncio.gather(*waits) == [2, 2]
        with pytest.raises(UsageError, match="must not be a coroutine"):
            await run.wait_state("phase", no_predicate)
        late = asyncio.create_task(run.wait_state("phase", 3))
        await run.send("phase", -1)
        with pytest.raises(RunFinished, match="has ended and did not publish the state 'phase'"):
            await late


async def test_a_stream_is_read_from_the_beginning_to_its_end(stage: Stage) -> None:
    engine = stage.engine(*WORKFLOWS)
    async with engine.worker():
        run = await engine.start(tokens(5))
        expected = [StreamItem(number, number * number) for number in range(5)]
        assert await items_of(run, type=int) == expected
        assert await items_of(run, after=2) == expected[3:]
        assert await items_of(run, "log", follow=False) == [StreamItem(0, "finished")]
        assert await items_of(run, "other") == []


async def test_a_stream_is_followed_live(stage: Stage) -> None:
    engine = stage.engine(*WORKFLOWS)
    async with engine.worker():
        run = await engine.start(paused())
        assert await items_of(run, follow=False) == []
        async with aclosing(run.stream("tokens", int)) as items:
            for number in range(3):
                await run.send("more", True)
                assert await asyncio.wait_for(anext(items), 20) == StreamItem(number, number)
            await run.send("more", False)
            assert [item.position async for item in items] == [3]
        assert await run.result("20s") == "over"


async def test_a_stream_longer_than_one_look_comes_whole(on_disk: Stage) -> None:
    @workflow("outputs.long.v1")
    async def long(ctx: Context) -> None:
        for number in range(1203):
            ctx.emit("numbers", number)

    engine = on_disk.engine(long)
    async with engine.worker():
        run = await engine.start(long())
        assert [item.value async for item in run.stream("numbers", int)] == list(range(1203))


async def test_another_process_sees_what_is_emitted_before_the_run_ends(on_disk: Stage) -> None:
    engine = on_disk.engine(*WORKFLOWS)
    async with Engine(on_disk.url) as stranger, engine.worker():
        run = await engine.start(paused(), id="r1")
        async with aclosing((await stranger.get("r1")).stream("tokens")) as items:
            for number in range(3):
                await run.send("more", True)
                assert (await asyncio.wait_for(anext(items), 20)).value == number
        await run.send("more", False)
        await run.result("20s")


async def test_a_follower_learns_that_the_engine_is_closed(on_disk: Stage) -> None:
    engine = on_disk.engine(*WORKFLOWS)
    run = await engine.start(paused())
    following = asyncio.ensure_future(items_of(run))
    asking = asyncio.ensure_future(run.ask("why", "x"))
    await eventually(run.inbox)
    await engine.close()
    with pytest.raises(EngineClosed):
        await asyncio.wait_for(following, 20)
    with pytest.raises(EngineClosed):
        await asyncio.wait_for(asking, 20)


async def test_a_run_answers_what_it_is_asked(stage: Stage) -> None:
    engine = stage.engine(*WORKFLOWS)
    async with engine.worker():
        run = await engine.start(shop())
        assert [await run.ask(quote, Order("a", cents), timeout="20s") for cents in (1, 2, 3)] == [2, 4, 6]
        assert await run.ask("quote", {"id": "b", "cents": 5}, returns=int, timeout="20s") == 10
        many = [run.ask(quote, Order("c", cents), timeout="20s") for cents in range(1, 8)]
        assert await asyncio.gather(*many) == [2 * cents for cents in range(1, 8)]


async def test_a_question_with_the_same_key_gets_the_same_answer(stage: Stage) -> None:
    engine = stage.engine(*WORKFLOWS)
    async with engine.worker():
        run = await engine.start(shop())
        assert await run.ask(quote, Order("a", 4), key="q1", timeout="20s") == 8
        assert await run.ask(quote, Order("a", 4), key="q1", timeout="20s") == 8
        with pytest.raises(RunFinished, match="without an answer"):
            await run.ask(quote, Order("end", 0), timeout="20s")
        assert await run.result() == 1
        # Also when it has ended.
        assert await run.ask(quote, Order("a", 4), key="q1", timeout="20s") == 8


async def test_an_answer_that_comes_with_the_end_is_an_answer(stage: Stage) -> None:
    engine = stage.engine(*WORKFLOWS)
    async with engine.worker():
        run = await engine.start(last_words())
        assert await run.ask("why", "rain", returns=str, timeout="20s") == "because of rain"


async def test_a_run_that_ends_badly_tells_its_questioner(stage: Stage) -> None:
    engine = stage.engine(*WORKFLOWS)
    async with engine.worker():
        run = await engine.start(shop())
        with pytest.raises(RunFailed, match="no such price"):
            await run.ask(quote, Order("a", -1), timeout="20s")
        with pytest.raises(RunFinished, match="was not asked"):
            await run.ask(quote, Order("a", 1), timeout="20s")
        other = await engine.start(paused())
        asking = asyncio.ensure_future(other.ask(quote, Order("a", 1), timeout="20s"))
        await until(other, Status.WAITING)
        await other.cancel()
        with pytest.raises(RunCancelled):
            await asking


async def test_an_answer_that_does_not_come_is_not_waited_for_for_ever(on_disk: Stage) -> None:
    engine = on_disk.engine(*WORKFLOWS)
    run = await engine.start(shop())
    with pytest.raises(TimeoutError, match="did not answer 'quote' within"):
        await run.ask(quote, Order("a", 1), timeout=0.05)
    with pytest.raises(InvalidDuration):
        await run.ask(quote, Order("a", 1), timeout="soon")
    assert len(await run.inbox()) == 1


async def test_a_broadcast_reaches_every_run_that_listens(stage: Stage) -> None:
    engine = stage.engine(*WORKFLOWS)
    async with engine.worker():
        runs = [await engine.start(listener(room)) for room in ("red", "red", "blue")]
        for run in runs:
            await until(run, Status.WAITING)
        assert await engine.runs.broadcast(stop, "fire", correlation="red", key="alarm") == 2
        assert [await run.result("20s") for run in runs[:2]] == ["fire", "fire"]
        assert await runs[2].status() is Status.WAITING
        assert await engine.runs.broadcast(stop, "fire", correlation="red", key="alarm") == 0
        assert await engine.runs.broadcast("stop", "late", correlation="blue") == 1
        assert await runs[2].result("20s") == "late"


async def test_a_broadcast_to_many_goes_in_chunks_and_can_be_repeated(on_disk: Stage) -> None:
    engine = on_disk.engine(*WORKFLOWS)
    async with engine.worker():
        runs = await engine.start_many([listener("all") for _ in range(230)])

        async def all_wait() -> bool:
            return not (await engine.runs.list(status=[Status.PENDING, Status.RUNNING], limit=1)).runs

        await eventually(all_wait)
    assert await engine.runs.broadcast(stop, "x", correlation="all", key="k") == 230
    assert await engine.runs.broadcast(stop, "y", correlation="all", key="k") == 230
    assert [len(await run.inbox()) for run in runs] == [1] * 230


async def test_bad_input_is_refused_before_anything_is_written(on_disk: Stage) -> None:
    engine = on_disk.engine(*WORKFLOWS)
    run = await engine.start(tokens(1))
    before = await on_disk.dump()
    for wrong in (
        run.ask("a/b", 1),
        run.ask(quote, Order("a", 1), key=""),
        run.state("a#b"),
        engine.runs.broadcast("a/b", correlation="x"),
        engine.runs.broadcast("a", correlation="x/y"),
        engine.runs.broadcast("a", correlation="x", key="k" * 250),
    ):
        with pytest.raises(UsageError):
            await wrong
    for unencodable in (run.ask("why", object()), engine.runs.broadcast("a", object(), correlation="x")):
        with pytest.raises(EncodeError):
            await unencodable
    with pytest.raises(InvalidName):
        await items_of(run, "a/b")
    with pytest.raises(UsageError, match="after=-2"):
        await items_of(run, after=-2)
    assert await on_disk.dump() == before


async def test_a_run_that_is_not_there_shows_nothing(on_disk: Stage) -> None:
    engine = on_disk.engine(*WORKFLOWS)
    run = await engine.start(tokens(1))
    run.id = "missing"
    for look in (run.state("a"), run.wait_state("a"), run.states(), run.ask("why"), items_of(run)):
        with pytest.raises(RunNotFound, match="missing"):
            await look


def test_code_that_is_not_async_looks_and_asks_too(tmp_path: Path) -> None:
    engine = Engine(f"sqlite:///{tmp_path}/runs.db", WORKFLOWS)
    with engine.blocking() as blocking, blocking.worker():
        run = blocking.start(tokens(3))
        assert [item.value for item in run.stream("tokens", int)] == [0, 1, 4]
        assert run.state("phase", str) == "done"
        assert run.states()["phase"] == run.wait_state("phase", "done", timeout="20s") == "done"
        store = blocking.start(shop())
        assert store.ask(quote, Order("a", 1), timeout="20s") == 2
        for item in run.stream("tokens", follow=False):
            assert item == StreamItem(0, 0)
            break
        assert blocking.runs.broadcast(stop, "x", correlation="missing") == 0


@workflow("outputs.deep.v1")
async def deep(ctx: Context) -> str:
    async def inner(ctx: Context) -> str:
        ctx.emit("tokens", 1)
        ctx.emit("tokens", 2)
        assert await ctx.call(tokens(1)) == 1
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await ctx.call(paused())
        ctx.send(ctx.run_id, "note", "to myself")
        return await ctx.receive("note", str)

    async def outer(ctx: Context) -> str:
        return (await ctx.join({"i" * 200: inner}))["i" * 200]

    return (await ctx.join({"o" * 200: outer}))["o" * 200]


async def test_a_run_shows_and_sends_from_the_deepest_of_places(stage: Stage) -> None:
    engine = stage.engine(deep, tokens, paused)
    async with engine.worker():
        run = await engine.start(deep(), id="r" * 255)
        assert await run.result("20s") == "to myself"
        assert [item.value async for item in run.stream("tokens")] == [1, 2]
