"""A cache of the module that workflows fill: whether a customer is greeted depends on the process."""

from dataclasses import dataclass

from perdure import Context, workflow
from perdure.testing import Environment


@dataclass
class Visit:
    customer: str
    page: str


GREETED: dict[str, str] = {}


async def greet(customer: str) -> str:
    return f"hello {customer}"


async def track(visit: Visit) -> None:
    """Write it to the warehouse."""


@workflow("samples.visit.v1")
async def visit_shop(ctx: Context, visit: Visit) -> str:
    if visit.customer not in GREETED:
        GREETED[visit.customer] = await ctx.step(greet, visit.customer)  # mistake
    await ctx.step(track, visit)
    return GREETED[visit.customer]


WORKFLOWS = [visit_shop]


async def drive(env: Environment) -> object:
    first = await env.start(visit_shop(Visit("ann", "/")))
    await first.result()
    second = await env.start(visit_shop(Visit("ann", "/cart")))
    return await second.result()
