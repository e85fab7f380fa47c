"""A loop over a set of names: each process has its own order, and the steps swap their arguments."""

from perdure import Context, workflow
from perdure.testing import Environment

REGIONS = {"eu-central", "eu-north", "eu-west", "us-east", "us-west", "ap-south", "ap-east", "sa-east"}


async def deploy(region: str, version: str) -> str:
    return f"{version} in {region}"


async def smoke_test(region: str) -> bool:
    return bool(region)


async def rollback(region: str) -> None:
    """Return to the version before."""


@workflow("samples.rollout.v1")
async def roll_out(ctx: Context, version: str) -> list[str]:
    done: list[str] = []
    for region in REGIONS:  # mistake
        done.append(await ctx.step(deploy, region, version))
        if not await ctx.step(smoke_test, region):
            await ctx.step(rollback, region)
            break
        await ctx.sleep("10m")
    return done


WORKFLOWS = [roll_out]


async def drive(env: Environment) -> object:
    run = await env.start(roll_out("v7"))
    await env.advance("2h")
    return await run.result()
