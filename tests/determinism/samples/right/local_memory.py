"""Caches and counters that belong to one execution, and a pure function that remembers its results."""

import functools
import itertools

from perdure import Context, workflow
from perdure.testing import Environment

RATES = {"standard": 190, "reduced": 70}


@functools.lru_cache(maxsize=1000)
def tax(cents: int, kind: str) -> int:
    return cents * RATES[kind] // 1000


class Basket:
    def __init__(self) -> None:
        self.lines: list[tuple[str, int]] = []
        self.numbers = itertools.count(1)

    def add(self, name: str, cents: int) -> int:
        self.lines.append((name, cents))
        return next(self.numbers)


async def price(item: str) -> int:
    return 100 * len(item)


@workflow("samples.right.basket.v1")
async def total(ctx: Context, items: list[str]) -> int:
    prices: dict[str, int] = {}
    basket = Basket()
    for item in items:
        if item not in prices:
            prices[item] = await ctx.step(price, item)
        number = basket.add(item, prices[item])
        ctx.publish("lines", number)
    return sum(cents + tax(cents, "standard") for _, cents in basket.lines)


WORKFLOWS = [total]


async def drive(env: Environment) -> object:
    run = await env.start(total(["pen", "book", "pen"]))
    return await run.result()
