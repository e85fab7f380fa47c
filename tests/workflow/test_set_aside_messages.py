"""Messages that cannot be decoded: they are set aside, and the run goes on waiting."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from perdure import Channel, Context, Handle, RunFinished, UsageError, workflow
from perdure.admin import RecordKind
from perdure.errors import DecodeError
from perdure.machine import Actions, StateMachine
from tests.helpers import eventually
from tests.stage import Stage, until_recorded


@workflow("aside.sum.v1")
async def add(ctx: Context, count: int) -> int:
    return sum([await ctx.receive("number", int) for _ in range(count)])


async def until_set_aside(run: Handle[Any], count: int = 1) -> None:
    async def there() -> bool:
        return len(await run.set_aside_messages()) >= count

    await eventually(there, saying=f"{count} messages being set aside")


async def test_a_message_of_the_wrong_type_is_set_aside_with_its_error(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    engine = stage.engine(add)
    with caplog.at_level(logging.WARNING):
        async with engine.worker():
            run = await engine.start(add(2))
            await run.send("number", {"by": "ann"})
            await until_set_aside(run)
            await run.send("number", 3)
            await run.send("number", 4)
            assert await run.result("20s") == 7
    [message] = await run.set_aside_messages()
    assert (message.number, message.name, message.payload) == (0, "number", '{"by":"ann"}')
    assert (message.error.type, message.decision) == ("perdure.errors.DecodeError", "")
    assert "message 'number'" in message.error.message
    [event] = [event for event in await run.events() if event.kind == "message_set_aside"]
    assert '"number"' in event.data
    assert f"message 'number' to run {run.id} is set aside" in caplog.text


async def test_a_message_whose_stored_json_cannot_be_read_is_set_aside(stage: Stage) -> None:
    engine = stage.engine(add)
    run = await engine.start(add(1))
    await run.send("number", 5)
    assert stage.store is not None
    await stage.store._write(
        "unblock", "", lambda tx: tx.execute("UPDATE perdure_messages SET payload = :text", {"text": "{5"})
    )
    async with engine.worker():
        await until_set_aside(run)
        assert (await run.set_aside_messages())[0].payload == "{5"
        await run.send("number", 6)
        assert await run.result("20s") == 6


async def test_a_message_is_delivered_again_as_it_is_or_edited_and_each_once(stage: Stage) -> None:
    engine = stage.engine(add)
    async with engine.worker():
        run = await engine.start(add(2))
        await run.send("number", "one")
        await run.send("number", "two")
        await until_set_aside(run, 2)
        assert "set aside 2 message(s)" in await run.why()
        await run.deliver_again(0)
        await until_set_aside(run, 3)
        await run.deliver_again(2, 1)
        await run.deliver_again(1, 2)
        assert await run.result("20s") == 3
        with pytest.raises(UsageError, match="was delivered again or dropped before"):
            await run.deliver_again(1, 2)
        with pytest.raises(UsageError, match="has set aside no message 3"):
            await run.drop_message(3)
    assert [message.decision for message in await run.set_aside_messages()] == ["delivered"] * 3


async def test_a_message_is_dropped_also_of_a_run_that_has_finished(stage: Stage) -> None:
    engine = stage.engine(add)
    async with engine.worker():
        run = await engine.start(add(1))
        await run.send("number", "one")
        await until_set_aside(run)
        await run.send("number", 1)
        assert await run.result("20s") == 1
    with pytest.raises(RunFinished, match="takes no more messages; retry it first, or drop the message"):
        await run.deliver_again(0)
    await run.drop_message(0)
    with pytest.raises(UsageError, match="before"):
        await run.drop_message(0)
    assert [message.decision for message in await run.set_aside_messages()] == ["dropped"]
    assert (await run.events())[-1].kind == "message_dropped"


async def test_another_worker_sees_the_same_and_new_code_gets_it_only_when_it_is_delivered_again(stage: Stage) -> None:
    run_id = "the run"
    engine = stage.engine(add)
    run: Handle[Any] = await engine.start(add(2), id=run_id)
    async with engine.worker():
        await run.send("number", "one")
        await until_set_aside(run)

    @workflow("aside.sum.v1")
    async def lenient(ctx: Context, count: int) -> list[int | str]:
        return [await ctx.receive("number", int | str) for _ in range(count)]

    if stage.url == "sqlite://":
        return
    newer = stage.engine(lenient)
    async with newer.worker():
        await run.send("number", 2)
        await until_recorded(run, 3)
        await run.deliver_again(0)
        assert await (await newer.get(run_id)).result("20s") == [2, "one"]


async def test_a_retried_run_does_not_get_what_was_set_aside(stage: Stage) -> None:
    fails = [True]

    def flaky() -> None:
        if fails:
            raise ValueError("no")

    @workflow("aside.retry.v1")
    async def retrying(ctx: Context) -> int:
        number = await ctx.receive("number", int)
        await ctx.options(retry=1).step(flaky)
        return number + await ctx.receive("number", int)

    engine = stage.engine(retrying)
    async with engine.worker():
        run = await engine.start(retrying())
        await run.send("number", "one")
        await until_set_aside(run)
        await run.send("number", 1)
        with pytest.raises(Exception, match="no"):
            await run.result("20s")
        fails.clear()
        assert await run.retry() == 2
        await run.deliver_again(0, 10)
        assert await run.result("20s") == 11
    assert len(await run.set_aside_messages()) == 1


async def test_a_fork_goes_on_past_a_message_that_was_set_aside(stage: Stage) -> None:
    def done() -> str:
        return "done"

    @workflow("aside.fork.v1")
    async def forked(ctx: Context) -> int:
        number = await ctx.receive("number", int)
        await ctx.step(done)
        return number

    engine = stage.engine(forked)
    async with engine.worker():
        run = await engine.start(forked())
        await run.send("number", "one")
        await until_set_aside(run)
        await run.send("number", 1)
        assert await run.result("20s") == 1
        other = await run.fork(from_step="done")
        assert await other.result("20s") == 1
        kinds = [record.kind for record in await other.history()]
        assert RecordKind.ASIDE in kinds


async def test_each_generation_sets_its_own_messages_aside(stage: Stage) -> None:
    @workflow("aside.generations.v1")
    async def generations(ctx: Context, rest: int) -> str:
        await ctx.receive("number", int)
        if rest:
            ctx.continue_as_new(generations(rest - 1))
        return "done"

    engine = stage.engine(generations)
    async with engine.worker():
        run = await engine.start(generations(1))
        for number in range(2):
            await run.send("number", f"wrong {number}")
            await until_set_aside(run, number + 1)
            await run.send("number", number)
        assert await run.result("20s") == "done"
    assert [message.payload for message in await run.set_aside_messages()] == ['"wrong 0"', '"wrong 1"']


async def test_a_question_that_cannot_be_decoded_gets_its_error_as_the_answer(stage: Stage) -> None:
    @workflow("aside.ask.v1")
    async def answering(ctx: Context) -> int:
        question = await ctx.receive_question("double", int)
        question.reply(question.value * 2)
        return question.value

    engine = stage.engine(answering)
    async with engine.worker():
        run = await engine.start(answering())
        with pytest.raises(DecodeError, match="message 'double~ask'"):
            await run.ask("double", "three", timeout="20s")
        assert await run.ask("double", 3, timeout="20s") == 6
        assert await run.result("20s") == 3


async def test_a_state_machine_sets_aside_what_it_cannot_decode(stage: Stage) -> None:
    class Counter(StateMachine[None, int], type="aside.machine.v1"):
        messages = (Channel("number", int),)

        def on_start(self, input: None) -> Actions:
            return None

        def on_message(self, name: str, value: Any) -> Actions:
            return self.complete(value)

    engine = stage.engine(Counter)
    async with engine.worker():
        run = await engine.start(Counter.call(None))
        await run.send("number", "one")
        await until_set_aside(run)
        await run.deliver_again(0, 4)
        assert await run.result("20s") == 4


async def test_a_cancellation_whose_reason_cannot_be_read_still_ends_the_run(stage: Stage) -> None:
    engine = stage.engine(add)
    run = await engine.start(add(1))
    async with engine.worker():
        await run.send("number", "one")
        await until_set_aside(run)
    await run.cancel("enough")
    assert stage.store is not None
    await stage.store._write(
        "unblock", "",
        lambda tx: tx.execute("UPDATE perdure_messages SET payload = :text WHERE kind = 'cancel'", {"text": "{5"}),
    )  # fmt: skip
    async with engine.worker():
        with pytest.raises(Exception, match="was cancelled: {5"):
            await run.result("20s")
