"""An invoice whose due date is computed from the worker's clock, as in many first workflows on Temporal."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from perdure import Context, workflow
from perdure.testing import Environment


@dataclass
class Invoice:
    number: str
    cents: int
    net_days: int = 30


async def send_invoice(number: str, due: str) -> str:
    return f"{number} due {due}"


async def send_reminder(number: str) -> str:
    return f"reminded {number}"


@workflow("samples.invoice.v1")
async def bill(ctx: Context, invoice: Invoice) -> str:
    due = datetime.now(UTC) + timedelta(days=invoice.net_days)  # mistake
    sent = await ctx.step(send_invoice, invoice.number, due.date().isoformat())
    await ctx.sleep_until(due)
    reminded = await ctx.step(send_reminder, invoice.number)
    return f"{sent}; {reminded}"


WORKFLOWS = [bill]


async def drive(env: Environment) -> object:
    run = await env.start(bill(Invoice("i-1", 999)))
    await env.advance("3650d")
    return await run.result()
