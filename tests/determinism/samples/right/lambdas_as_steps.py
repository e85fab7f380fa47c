"""Lambdas with a name of their own, as steps; and lambdas that only sort."""

import datetime
import os
import secrets

from perdure import Context, workflow
from perdure.testing import Environment


async def issue(token: str, day: str) -> str:
    return f"{len(token) > 8} {day[:2]}"


@workflow("samples.right.lambdas.v1")
async def tokens(ctx: Context, users: list[str]) -> list[str]:
    make_token = lambda: secrets.token_hex(8)  # noqa: E731 # users write it
    day = await ctx.options(name="today").step(lambda: datetime.date.today().isoformat())
    issued: list[str] = []
    for user in sorted(users, key=lambda name: (len(name), name)):
        token = await ctx.options(name="token").step(make_token)
        issued.append(f"{user} {await ctx.step(issue, token, day)}")
    processor = await ctx.options(name="processors").step(lambda: os.cpu_count() or 1)
    return [*issued, str(processor > 0)]


WORKFLOWS = [tokens]


async def drive(env: Environment) -> object:
    run = await env.start(tokens(["dora", "ann"]))
    return await run.result()
