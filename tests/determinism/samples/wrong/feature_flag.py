"""A feature flag in the environment of the worker decides about the path of the run."""

import os

from perdure import Context, workflow
from perdure.testing import Environment


async def score_by_rules(applicant: str) -> int:
    return 600


async def score_by_model(applicant: str) -> int:
    return 640


async def decide(applicant: str, score: int) -> str:
    return f"{applicant}: {'granted' if score > 620 else 'refused'}"


@workflow("samples.credit.v1")
async def credit(ctx: Context, applicant: str) -> str:
    if os.environ.get("SCORING_MODEL", "off") == "on":  # mistake
        score = await ctx.step(score_by_model, applicant)
    else:
        score = await ctx.step(score_by_rules, applicant)
    await ctx.sleep("1d")
    return await ctx.step(decide, applicant, score)


WORKFLOWS = [credit]


async def drive(env: Environment) -> object:
    run = await env.start(credit("ann"))
    await env.advance("1d")
    return await run.result()
