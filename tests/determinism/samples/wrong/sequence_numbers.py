"""A counter of the module: its value depends on which runs this process has executed before."""

from perdure import Context, workflow
from perdure.testing import Environment

_last_number = 1000


async def file_claim(number: int, text: str) -> str:
    return f"claim {number}: {text}"


async def confirm(claim: str) -> str:
    return f"confirmed {claim}"


def next_number() -> int:
    global _last_number  # mistake
    _last_number += 1
    return _last_number


@workflow("samples.claim.v1")
async def claim(ctx: Context, text: str) -> str:
    number = next_number()
    filed = await ctx.step(file_claim, number, text)
    await ctx.sleep("1d")
    return await ctx.step(confirm, filed)


WORKFLOWS = [claim]


async def drive(env: Environment) -> object:
    first = await env.start(claim("water"))
    second = await env.start(claim("fire"))
    await env.advance("1d")
    return await first.result(), await second.result()
