"""Values that go through the database come back as they were, or are refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pydantic
import pytest

from perdure import Break, Channel, Context, Continue, Question, activity, workflow
from perdure.errors import EncodeError
from perdure.testing import Environment
from tests.stage import Stage

pytestmark = pytest.mark.every_database


@dataclass
class Card:
    number: str


@dataclass
class Cash:
    cents: int


Means = Card | Cash

means: Channel[Any] = Channel("means", Means)
question: Question[Any, Any] = Question("question", Means, Means)


class Base(pydantic.BaseModel):
    name: str


class Special(Base):
    discount: int = 3


def swap(given: Means) -> Means:
    return Cash(len(given.number)) if isinstance(given, Card) else Card(f"{given.cents}")


@activity("roundtrip.swap.v1")
def swap_elsewhere(given: Means) -> Means:
    return swap(given)


@workflow("roundtrip.child.v1")
async def child(ctx: Context, given: Means, others: dict[str, Means] | None = None) -> list[Means]:
    return [given, *(others or {}).values()]


@workflow("roundtrip.all.v1")
async def everything(ctx: Context, given: Means = Card("7")) -> list[Means]:  # noqa: B008 # the default is frozen
    async def body(ctx: Context, state: Means) -> Continue[Means] | Break[Means]:
        await ctx.step(swap, state)
        return Break(state) if isinstance(state, Cash) else Continue(Cash(1))

    swapped = await ctx.step(swap, given)
    children = await ctx.call(child(swapped, {"a": Card("1")}))
    elsewhere = await ctx.call(swap_elsewhere(given))
    start: Means = Card("0")
    looped = await ctx.loop(start, body, commit_every=1)
    received = await ctx.receive(means)
    asked = await ctx.receive_question(question)
    asked.reply(swap(asked.value))
    return [swapped, *children, elsewhere, looped, received, asked.value]


async def test_unions_of_classes_come_back_wherever_they_go(stage: Stage) -> None:
    engine = stage.engine(everything, child, swap_elsewhere)
    run = await engine.start(everything())
    assert (await run.info()).input == '{"given":{"$type":"Card","number":"7"}}'
    async with engine.worker():
        await run.send(means, Cash(5))
        assert await run.ask(question, Card("12"), timeout="20s") == Cash(2)
        assert await run.result("20s") == [Cash(1), Cash(1), Card("1"), Cash(1), Cash(1), Cash(5), Card("12")]


async def test_a_subclass_of_what_is_declared_is_refused(stage: Stage) -> None:
    def load() -> Base:
        return Special(name="a")

    @workflow("roundtrip.subclass.v1")
    async def loading(ctx: Context) -> Base:
        return await ctx.step(load)

    engine = stage.engine(loading)
    async with engine.worker():
        run = await engine.start(loading())
        with pytest.raises(Exception, match="is a Special and comes back as a Base; it is declared as Base"):
            await run.result("20s")


async def test_a_result_without_an_annotation_has_to_be_plain(stage: Stage) -> None:
    def load():  # type: ignore[no-untyped-def]  # noqa: ANN202 # users leave annotations out
        return {"by": [Card("1")]}

    @workflow("roundtrip.untyped.v1")
    async def loading(ctx: Context) -> Any:
        return await ctx.step(load)

    engine = stage.engine(loading)
    async with engine.worker():
        run = await engine.start(loading())
        with pytest.raises(Exception, match=r"by\[0\] is a Card and comes back as a dict; declare the return type"):
            await run.result("20s")


async def test_a_strict_environment_checks_every_value() -> None:
    def load() -> list[int]:
        return (1, 2)  # type: ignore[return-value] # users return it

    @workflow("roundtrip.strict.v1")
    async def loading(ctx: Context) -> list[int]:
        return await ctx.step(load)

    @workflow("roundtrip.lossy.v1")
    async def receiving(ctx: Context) -> int:
        return (await ctx.receive("cash", Cash)).cents

    async with Environment([loading]) as env:
        assert await (await env.start(loading())).result() == [1, 2]
    async with Environment([loading, receiving], strict=True) as env:
        run = await env.start(loading())
        with pytest.raises(Exception, match="is a tuple and comes back as a list"):
            await run.result()
        other = await env.start(receiving())
        await other.send("cash", {"cents": 1, "currency": "EUR"})
        with pytest.raises(Exception, match="currency is lost"):
            await other.result()


async def test_arguments_are_refused_where_they_are_given(stage: Stage) -> None:
    @workflow("roundtrip.bare.v1")
    async def bare(ctx: Context, given) -> None: ...  # type: ignore[no-untyped-def]  # noqa: ANN001 # users leave annotations out

    engine = stage.engine(bare)
    with pytest.raises(EncodeError, match="argument 'given' of the input .* it is a Card and comes back as a dict"):
        await engine.start(bare(Card("1")))
