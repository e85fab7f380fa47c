"""The difference of two sets becomes a list, and the list becomes steps."""

import asyncio

from perdure import Context, workflow
from perdure.testing import Environment


async def list_orders(day: str) -> list[str]:
    return [f"order-{number}" for number in range(12)]


async def list_payments(day: str) -> list[str]:
    return [f"order-{number}" for number in range(0, 12, 4)]


async def remind(order: str) -> str:
    return f"reminded {order}"


@workflow("samples.reconcile.v1")
async def reconcile(ctx: Context, day: str) -> list[str]:
    orders, payments = await asyncio.gather(ctx.step(list_orders, day), ctx.step(list_payments, day))
    unpaid = set(orders) - set(payments)
    if not unpaid:
        return []
    return [await ctx.step(remind, order) for order in unpaid]  # mistake


WORKFLOWS = [reconcile]


async def drive(env: Environment) -> object:
    run = await env.start(reconcile("2026-01-01"))
    return await run.result()
