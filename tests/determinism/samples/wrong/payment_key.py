"""A fresh idempotency key on every replay: the provider sees two different payments."""

from dataclasses import dataclass
from uuid import uuid4

from perdure import Context, Retry, step, workflow
from perdure.testing import Environment


@dataclass
class Payment:
    order: str
    cents: int
    key: str


@step(retry=Retry(attempts=5), timeout="30s")
async def charge(payment: Payment) -> str:
    return f"charged {payment.cents} for {payment.order}"


async def book(order: str, receipt: str) -> None:
    """Write it into the ledger."""


@workflow("samples.payment.v1")
async def pay(ctx: Context, order: str, cents: int) -> str:
    payment = Payment(order, cents, key=str(uuid4()))  # mistake
    receipt = await ctx.step(charge, payment)
    await ctx.step(book, order, receipt)
    return receipt


WORKFLOWS = [pay]


async def drive(env: Environment) -> object:
    run = await env.start(pay("o-1", 1200))
    return await run.result()
