"""Coupon codes from the global generator: a replay mails other codes than the ones that were stored."""

import random
import string

from perdure import Context, workflow
from perdure.testing import Environment

ALPHABET = string.ascii_uppercase + string.digits


async def store_coupon(customer: str, code: str) -> str:
    return code


async def mail(customer: str, text: str) -> str:
    return f"to {customer}: {text}"


@workflow("samples.coupons.v1")
async def reward(ctx: Context, customers: list[str]) -> list[str]:
    sent: list[str] = []
    for customer in customers:
        code = "".join(random.choices(ALPHABET, k=8))  # mistake
        stored = await ctx.step(store_coupon, customer, code)
        sent.append(await ctx.step(mail, customer, f"your coupon: {stored}"))
        await ctx.sleep("1m")
    return sent


WORKFLOWS = [reward]


async def drive(env: Environment) -> object:
    run = await env.start(reward(["ann", "bob"]))
    await env.advance("5m")
    return await run.result()
