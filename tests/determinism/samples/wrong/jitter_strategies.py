"""Delays are chosen from a table of functions, one of which draws a random number."""

import random
from collections.abc import Callable

from perdure import Context, workflow
from perdure.testing import Environment


def constant(least: float, most: float) -> float:
    return (least + most) / 2


STRATEGIES: dict[str, Callable[[float, float], float]] = {
    "constant": constant,
    "jitter": random.uniform,
}


async def crawl(url: str) -> int:
    return len(url)


@workflow("samples.crawl.v1")
async def crawl_politely(ctx: Context, urls: list[str], strategy: str = "jitter") -> int:
    total = 0
    for url in urls:
        total += await ctx.step(crawl, url)
        await ctx.sleep(STRATEGIES[strategy](1.0, 5.0))  # mistake
    return total


WORKFLOWS = [crawl_politely]


async def drive(env: Environment) -> object:
    run = await env.start(crawl_politely(["https://a.example", "https://b.example"]))
    await env.advance("1m")
    return await run.result()
