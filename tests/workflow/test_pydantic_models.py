from __future__ import annotations

from decimal import Decimal

import pytest
from pydantic import BaseModel

from perdure import Context, RunFailed, workflow
from perdure.errors import BadArguments
from tests.stage import Stage


class Order(BaseModel):
    id: str
    cents: Decimal


class Receipt(BaseModel):
    order: Order
    paid: bool = True


async def charge(order: Order) -> Receipt:
    assert isinstance(order, Order)
    return Receipt(order=order)


@workflow("models.child.v1")
async def child(ctx: Context, orders: list[Order], more: Order | None = None) -> Order:
    return orders[0]


@workflow("models.checkout.v1")
async def checkout(ctx: Context, order: Order, retries: int = 3) -> list[Receipt]:
    receipt = await ctx.step(charge, order)
    assert isinstance(receipt, Receipt)
    message = await ctx.receive("second", Order)
    assert isinstance(message, Order)
    back = await ctx.call(child([message]))
    return [receipt, await ctx.step(charge, back)]


async def test_models_are_arguments_results_and_messages(stage: Stage) -> None:
    first, second = Order(id="o-1", cents=Decimal("1.50")), Order(id="o-2", cents=Decimal(2))
    engine = stage.engine(checkout, child)
    async with engine.worker():
        run = await engine.start(checkout(first))
        await run.send("second", second)
        assert await run.result("20s") == [Receipt(order=first), Receipt(order=second)]


async def test_an_argument_that_is_no_such_model_is_refused_before_anything_is_written(on_disk: Stage) -> None:
    engine = on_disk.engine(checkout)
    with pytest.raises(BadArguments, match="cents"):
        await engine.start(checkout({"id": "o-1", "cents": "much"}))  # type: ignore[arg-type] # wrong on purpose
    assert (await engine.runs.list()).runs == ()


async def test_a_result_that_would_change_fails_the_step_by_its_field(on_disk: Stage) -> None:
    class Rate(BaseModel):
        value: float

    async def rate() -> Rate:
        return Rate(value=float("nan"))

    @workflow("models.rate.v1")
    async def rating(ctx: Context) -> None:
        await ctx.step(rate)

    engine = on_disk.engine(rating)
    async with engine.worker():
        with pytest.raises(RunFailed, match="value does not fit Rate"):
            await (await engine.start(rating())).result("20s")
