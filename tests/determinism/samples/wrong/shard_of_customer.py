"""The hash of a text differs from process to process, and with it the shard."""

from perdure import Context, workflow
from perdure.testing import Environment

SHARDS = 64


async def write(shard: int, customer: str, value: str) -> str:
    return f"{customer}={value} in shard {shard}"


async def invalidate(shard: int) -> None:
    """Drop the shard's cache."""


def shard_of(customer: str) -> int:
    return hash(customer) % SHARDS  # mistake


@workflow("samples.profile.v1")
async def update_profile(ctx: Context, customer: str, value: str) -> str:
    shard = shard_of(customer)
    written = await ctx.step(write, shard, customer, value)
    await ctx.sleep("5s")
    await ctx.step(invalidate, shard_of(customer))
    return written


WORKFLOWS = [update_profile]


async def drive(env: Environment) -> object:
    run = await env.start(update_profile("ann", "vip"))
    await env.advance("5s")
    return await run.result()
