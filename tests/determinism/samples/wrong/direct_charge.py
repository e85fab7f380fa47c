"""A step that is called like a plain function: it runs again on every replay, and nothing records its result."""

from perdure import Context, Retry, step, workflow
from perdure.testing import Environment

charges: list[str] = []


@step(name="charge-card", retry=Retry(attempts=3))
async def charge(order: str, cents: int) -> str:
    charges.append(order)
    return f"receipt {order}"


@step(timeout="1m")
async def ship(order: str) -> str:
    return f"shipped {order}"


@workflow("samples.checkout.v1")
async def checkout(ctx: Context, order: str, cents: int) -> str:
    receipt = await charge(order, cents)  # mistake
    ctx.publish("receipt", receipt)
    await ctx.sleep("1h")
    shipped = await ctx.step(ship, order)
    return f"{receipt}, {shipped}"


WORKFLOWS = [checkout]


async def drive(env: Environment) -> object:
    run = await env.start(checkout("o-1", 1200))
    await env.advance("1h")
    return await run.result()
