"""A generator of its own, seeded by the run: the same numbers on every replay."""

import random
import re
import statistics
from decimal import ROUND_HALF_UP, Decimal

from perdure import Context, workflow
from perdure.testing import Environment


def simulate(seed: str, rounds: int) -> list[float]:
    generator = random.Random(seed)
    return [generator.gauss(100, 15) for _ in range(rounds)]


async def store(mean: str, worst: str) -> str:
    return f"{mean} {worst}"


def rounded(value: float) -> str:
    return str(Decimal(value).quantize(Decimal("0.01"), ROUND_HALF_UP))


@workflow("samples.right.simulation.v1")
async def simulation(ctx: Context, portfolio: str) -> str:
    samples = simulate(f"{ctx.run_id}/{portfolio}", 50)
    mean, worst = statistics.fmean(samples), min(samples)
    if not re.fullmatch(r"[a-z-]+", portfolio):
        return "bad name"
    return await ctx.step(store, rounded(mean), rounded(worst))


WORKFLOWS = [simulation]


async def drive(env: Environment) -> object:
    run = await env.start(simulation("growth"))
    return await run.result()
