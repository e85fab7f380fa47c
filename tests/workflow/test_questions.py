"""Questions that are answered by a handler, refused by a validator, or answered with an error."""

from __future__ import annotations

import asyncio
import operator
from typing import Any

import pytest

from perdure import Context, Handle, Question, ReceivedQuestion, Retry, Status, workflow
from perdure.admin import Reason, RecordKind
from perdure.errors import BadArguments, QuestionRefused, WorkflowError
from perdure.machine import Actions, StateMachine
from tests.helpers import eventually
from tests.invariants import scan_store
from tests.stage import Stage

BID = Question("bid", int, int)


class Outbid(Exception):
    """The error of a handler."""

    def __init__(self, message: str, *, best: int = 0) -> None:
        super().__init__(message)
        self.best = best


async def waiting(run: Handle[Any]) -> None:
    """Wait until a run waits for a message."""

    async def there() -> bool:
        return (await run.info()).reason is Reason.MESSAGE

    await eventually(there, saying=f"{run!r} waiting for a message")


def auction(calls: list[int]) -> Any:
    """A workflow that takes bids that are higher than the best one."""

    @workflow("shop.auction.v1")
    async def auction(ctx: Context) -> list[int]:
        bids = [10]

        def check(bid: int) -> None:
            calls.append(bid)
            if bid <= bids[-1]:
                raise ValueError(f"{bid} is not more than {bids[-1]}")

        def take(bid: int) -> int:
            bids.append(bid)
            return len(bids)

        ctx.answer(BID, take, validate=check)
        await ctx.receive("close")
        return bids

    return auction


async def test_a_question_is_refused_before_anything_is_recorded(stage: Stage) -> None:
    calls: list[int] = []
    definition = auction(calls)
    engine = stage.engine(definition)
    async with engine.worker():
        run = await engine.start(definition(), id="a")
        await waiting(run)
        assert await run.ask(BID, 20, timeout="20s") == 2
        before = await run.history()
        for _ in range(2):
            with pytest.raises(QuestionRefused, match=r"run 'a' refuses the question 'bid': 15 is not more") as caught:
                await run.ask(BID, 15, key="low", timeout="20s")
            assert isinstance(caught.value.__cause__, ValueError)
        assert await run.history() == before
        assert await run.inbox() == []
        assert await run.ask(BID, 30, timeout="20s") == 3
        await run.send("close")
        assert await run.result("20s") == [10, 20, 30]
    assert calls == [20, 15, 30]
    kinds = [(record.kind, record.location) for record in await run.history()]
    assert kinds == [(RecordKind.MESSAGE, "bid~ask"), (RecordKind.MESSAGE, "bid~ask"), (RecordKind.MESSAGE, "close")]
    assert stage.store is not None
    assert await scan_store(stage.store.query) == []


async def test_replay_calls_no_validator(stage: Stage) -> None:
    calls: list[int] = []
    definition = auction(calls)
    engine = stage.engine(definition)
    async with engine.worker():
        run = await engine.start(definition(), id="a")
        assert await run.ask(BID, 20, timeout="20s") == 2
        with pytest.raises(QuestionRefused):
            await run.ask(BID, 15, timeout="20s")
        await waiting(run)
    async with engine.worker():
        assert await run.ask(BID, 25, timeout="20s") == 3
        await run.send("close")
        assert await run.result("20s") == [10, 20, 25]
    assert calls == [20, 15, 25]


async def test_another_attempt_takes_the_questions_of_the_one_before_as_valid(stage: Stage) -> None:
    calls: list[int] = []
    taken: list[int] = []

    @workflow("shop.tried.v1", retry=Retry(attempts=2, initial=0.01))
    async def tried(ctx: Context) -> list[int]:
        ctx.answer(BID, take, validate=calls.append)
        await ctx.receive("close")
        if len(taken) == 3:
            raise RuntimeError("not yet")
        return taken

    def take(bid: int) -> int:
        taken.append(bid)
        return bid

    engine = stage.engine(tried)
    async with engine.worker():
        run = await engine.start(tried())
        for bid in (20, 30, 40):
            assert await run.ask(BID, bid, timeout="20s") == bid
        await run.send("close")
        assert await run.result("20s") == [20, 30, 40, 20, 30, 40]
    assert calls == [20, 30, 40]


async def test_each_question_of_a_batch_is_validated_in_the_state_before_it(stage: Stage) -> None:
    calls: list[int] = []
    definition = auction(calls)
    engine = stage.engine(definition)
    run = await engine.start(definition(), id="a")
    asked = [asyncio.create_task(run.ask(BID, bid, key=f"{bid}", timeout="60s")) for bid in (20,)]

    async def arrived(count: int) -> None:
        async def there() -> bool:
            return len(await run.inbox()) == count

        await eventually(there, saying=f"{count} questions having arrived")

    await arrived(1)
    for number, bid in enumerate((20, 30, 25), 2):
        asked.append(asyncio.create_task(run.ask(BID, bid, key=f"again {bid}", timeout="60s")))
        await arrived(number)
    await run.send("close", key="close")
    async with engine.worker():
        assert await run.result("20s") == [10, 20, 30]
        answers = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(one) if isinstance(one, Exception) else one for one in answers] == [
        2, QuestionRefused, 3, QuestionRefused,
    ]  # fmt: skip
    assert calls == [20, 20, 30, 25]


async def test_a_handler_that_raises_answers_with_its_error_and_the_run_goes_on(stage: Stage) -> None:
    @workflow("shop.offers.v1")
    async def offers(ctx: Context) -> str:
        def take(bid: int) -> int:
            raise Outbid(f"{bid} is too low", best=7)

        async def take_later(bid: int) -> int:
            return 10 // await ctx.step(int, bid)

        ctx.answer(BID, take)
        ctx.answer("later", take_later, int)
        ctx.answer("odd", lambda value: object())
        return await ctx.receive("close", str)

    engine = stage.engine(offers)
    async with engine.worker():
        run = await engine.start(offers(), id="o")
        with pytest.raises(Outbid, match="5 is too low") as caught:
            await run.ask(BID, 5, timeout="20s")
        assert caught.value.best == 7
        assert await run.ask("later", 5, returns=int, timeout="20s") == 2
        with pytest.raises(ZeroDivisionError):
            await run.ask("later", 0, timeout="20s")
        with pytest.raises(Exception, match="answer to 'odd'"):
            await run.ask("odd", 0, timeout="20s")
        await run.send("close", "done")
        assert await run.result("20s") == "done"
    steps = [record.location for record in await run.history() if record.kind is RecordKind.STEP]
    assert steps == ["later/int", "later#2/int"]


async def test_handlers_of_one_question_may_overlap(stage: Stage) -> None:
    @workflow("shop.queue.v1")
    async def queue(ctx: Context) -> int:
        async def take(number: int) -> int:
            await ctx.sleep(0.05 * (3 - number))
            return await ctx.step(operator.mul, number, 2)

        ctx.answer(BID, take)
        return await ctx.receive("close", int)

    engine = stage.engine(queue)
    async with engine.worker():
        run = await engine.start(queue(), id="q")
        assert await asyncio.gather(*(run.ask(BID, number, timeout="20s") for number in range(3))) == [0, 2, 4]
        await run.send("close", 1)
        assert await run.result("20s") == 1


async def test_a_workflow_that_takes_questions_itself_may_answer_with_an_error(stage: Stage) -> None:
    @workflow("shop.desk.v1")
    async def desk(ctx: Context) -> int:
        asked: ReceivedQuestion[int, int] = await ctx.receive_question(BID)
        asked.fail(Outbid("no", best=asked.value))
        asked.reply(1)  # too late: the first answer counts
        return asked.value

    engine = stage.engine(desk)
    async with engine.worker():
        run = await engine.start(desk(), id="d")
        with pytest.raises(Outbid) as caught:
            await run.ask(BID, 9, timeout="20s")
        assert caught.value.best == 9
        assert await run.result("20s") == 9


async def test_a_validator_cannot_use_the_context(stage: Stage) -> None:
    @workflow("shop.strict.v1")
    async def strict(ctx: Context) -> float:
        ctx.answer("draw", lambda value: value, validate=lambda value: ctx.random() > 2)
        ctx.answer("tell", lambda value: value, validate=lambda value: ctx.publish("told", value))
        await ctx.receive("close")
        return ctx.random()

    engine = stage.engine(strict)
    async with engine.worker():
        run = await engine.start(strict(), id="s")
        for name in ("draw", "tell"):
            with pytest.raises(QuestionRefused, match="the context of run 's' was used") as caught:
                await run.ask(name, 1, timeout="20s")
            assert isinstance(caught.value.__cause__, WorkflowError)
        assert await run.states() == {}
        await run.send("close")
        await run.result("20s")


async def test_a_question_that_came_before_the_handler_is_validated_by_the_workflow(stage: Stage) -> None:
    calls: list[int] = []

    @workflow("shop.late.v1")
    async def late(ctx: Context) -> int:
        def check(bid: int) -> None:
            calls.append(bid)
            if bid < 10:
                raise ValueError("too low")

        await ctx.receive("open")
        ctx.answer(BID, lambda bid: bid + 1, validate=check)
        return await ctx.receive("close", int)

    engine = stage.engine(late)
    async with engine.worker():
        run = await engine.start(late(), id="l")
        await waiting(run)
        asked = [asyncio.create_task(run.ask(BID, bid, timeout="60s")) for bid in (5, 15)]

        async def recorded() -> bool:
            return len(await run.history()) == 2

        await eventually(recorded, saying="both questions being recorded")
        await run.send("open")
        answers = await asyncio.gather(*asked, return_exceptions=True)
        assert isinstance(answers[0], QuestionRefused)
        assert answers[1] == 16
        await run.send("close", 1)
        assert await run.result("20s") == 1
    assert sorted(calls) == [5, 15]


async def test_an_answer_needs_functions(stage: Stage) -> None:
    async def check(value: int) -> None:
        """Would have to be awaited."""

    @workflow("shop.wrong.v1")
    async def wrong(ctx: Context) -> list[str]:
        found = []
        for handler, validate in ((7, None), (len, 7), (len, check)):
            try:
                ctx.answer("q", handler, validate=validate)  # type: ignore[arg-type] # what it is about
            except BadArguments as error:
                found.append(str(error))
        return found

    engine = stage.engine(wrong)
    async with engine.worker():
        found = await (await engine.start(wrong())).result("20s")
    assert [text.split(",")[0].split(" is ")[0] for text in found] == [
        "answer takes a function that returns the answer", "validate", "validate",
    ]  # fmt: skip


class Auction(StateMachine[int, list[int]], type="shop.auction_machine.v1"):
    """Takes bids that are higher than the best one."""

    questions = (BID, Question("best", None, int))

    def on_start(self, input: int) -> Actions:
        self.bids = [input]
        return None

    def check_question(self, name: str, value: Any) -> None:
        if name == "bid" and value <= self.bids[-1]:
            raise ValueError(f"{value} is not more than {self.bids[-1]}")

    def on_question(self, name: str, value: Any) -> Actions:
        if name == "best":
            return self.reply(self.bids[-1])
        if value == 66:
            raise Outbid("we do not take that", best=self.bids[-1])
        self.bids.append(value)
        if value >= 100:
            return [self.reply(len(self.bids)), self.complete(self.bids)]
        return [self.publish("best", value), self.reply(len(self.bids))]


async def test_a_state_machine_answers_and_refuses_questions(stage: Stage) -> None:
    engine = stage.engine(Auction)
    async with engine.worker():
        run = await engine.start(Auction.call(10), id="m")
        assert await run.ask(BID, 20, timeout="20s") == 2
        with pytest.raises(QuestionRefused, match="15 is not more than 20"):
            await run.ask(BID, 15, timeout="20s")
        with pytest.raises(Outbid) as caught:
            await run.ask(BID, 66, timeout="20s")
        assert caught.value.best == 20
        assert await run.ask("best", None, returns=int, timeout="20s") == 20
        assert await run.state("best") == 20
        await waiting(run)
    async with engine.worker():
        assert await run.ask(BID, 100, timeout="20s") == 3
        assert await run.result("20s") == [10, 20, 100]
    assert await run.status() is Status.COMPLETED
    assert len(await run.history()) == 4
