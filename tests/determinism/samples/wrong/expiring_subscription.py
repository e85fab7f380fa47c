"""A property of a model reads the calendar; the workflow only seems to look at its own data."""

import datetime as dt
from dataclasses import dataclass

from perdure import Context, workflow
from perdure.testing import Environment


@dataclass
class Subscription:
    customer: str
    paid_until: dt.date
    plan: str = "basic"

    @property
    def days_left(self) -> int:
        return (self.paid_until - dt.date.today()).days  # mistake

    @property
    def is_paid_plan(self) -> bool:
        return self.plan != "free"


async def renew(customer: str) -> str:
    return f"renewed {customer}"


async def offer_discount(customer: str, days: int) -> str:
    return f"offered {customer} a discount, {days} days before the end"


@workflow("samples.subscription.v1")
async def keep_customer(ctx: Context, subscription: Subscription) -> str:
    if not subscription.is_paid_plan:
        return "free"
    if subscription.days_left > 14:
        return await ctx.step(offer_discount, subscription.customer, subscription.days_left)
    return await ctx.step(renew, subscription.customer)


WORKFLOWS = [keep_customer]


async def drive(env: Environment) -> object:
    run = await env.start(keep_customer(Subscription("ann", dt.date(2026, 1, 3))))
    return await run.result()
