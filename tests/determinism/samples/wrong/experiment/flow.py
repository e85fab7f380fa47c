"""An onboarding whose path depends on a helper of another module, which draws a random number."""

from perdure import Context, workflow
from perdure.testing import Environment
from tests.determinism.samples.wrong.experiment import assignment


async def send_tour(customer: str) -> str:
    return f"tour for {customer}"


async def send_letter(customer: str) -> str:
    return f"letter for {customer}"


@workflow("samples.onboarding.v1")
async def onboard(ctx: Context, customer: str) -> str:
    arm = assignment.assign()
    await ctx.sleep("1d")
    if assignment.is_treated(arm):
        return await ctx.step(send_tour, customer)
    return await ctx.step(send_letter, customer)


WORKFLOWS = [onboard]


async def drive(env: Environment) -> object:
    run = await env.start(onboard("ann"))
    await env.advance("1d")
    return await run.result()
