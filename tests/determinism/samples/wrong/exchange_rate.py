"""An HTTP request in the workflow: the example that the guides of DBOS and Temporal warn of first."""

import requests

from perdure import Context, workflow
from perdure.testing import Environment

RATES = "http://127.0.0.1:9/rates"


async def quote(customer: str, cents: int, currency: str) -> str:
    return f"{customer}: {cents} {currency}"


@workflow("samples.quote.v1")
async def make_offer(ctx: Context, customer: str, cents: int, currency: str = "CHF") -> str:
    answer = requests.get(RATES, params={"from": "EUR", "to": currency}, timeout=5)  # mistake
    answer.raise_for_status()
    rate = float(answer.json()["rate"])
    offer = await ctx.step(quote, customer, round(cents * rate), currency)
    await ctx.sleep("14d")
    return f"{offer}, expired"


WORKFLOWS = [make_offer]


async def drive(env: Environment) -> object:
    run = await env.start(make_offer("ann", 10_000))
    await env.advance("15d")
    return await run.result()
