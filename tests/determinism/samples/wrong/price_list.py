"""A price list read from the worker's disk: the next deploy replays old runs with new prices."""

import json
import os.path

from perdure import Context, workflow
from perdure.testing import Environment

PRICES = os.path.join(os.path.dirname(__file__), "prices.json")


async def reserve(item: str, count: int) -> str:
    return f"{count} x {item}"


async def charge(cents: int) -> str:
    return f"charged {cents}"


@workflow("samples.order.v1")
async def order(ctx: Context, basket: dict[str, int]) -> str:
    with open(PRICES) as file:  # mistake
        prices: dict[str, int] = json.load(file)
    total = 0
    for item, count in basket.items():
        await ctx.step(reserve, item, count)
        total += prices[item] * count
    return await ctx.step(charge, total)


WORKFLOWS = [order]


async def drive(env: Environment) -> object:
    run = await env.start(order({"pen": 2, "book": 1}))
    return await run.result()
