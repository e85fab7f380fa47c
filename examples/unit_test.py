"""Weeks of waiting, tested in milliseconds.

Run it: python examples/unit_test.py, or with pytest and pytest-asyncio.
"""

from __future__ import annotations

import asyncio

from perdure import Context, workflow
from perdure.testing import Environment


def remind(customer: str, day: int) -> str:
    return f"day {day}: dear {customer}, please pay"


@workflow("billing.dunning.v1")
async def dunning(ctx: Context, customer: str) -> str:
    for day in (7, 14, 21):
        try:
            async with asyncio.timeout(7 * 86_400):
                return f"paid {await ctx.receive('payment', int)}"
        except TimeoutError:
            await ctx.step(remind, customer, day)
    return "to the lawyers"


async def test_a_customer_who_pays_is_reminded_no_more() -> None:
    async with Environment([dunning]) as env:
        run = await env.start(dunning("Ada"))
        await env.advance("10d")
        await env.send(run, "payment", 900)
        assert await run.result() == "paid 900"
        reminders = [record.payload for record in await run.history() if record.kind == "step"]
        assert reminders == ['"day 7: dear Ada, please pay"']


async def test_a_customer_who_does_not_pay_is_reminded_three_times() -> None:
    async with Environment([dunning]) as env:
        run = await env.start(dunning("Bob"))
        await env.advance("30d")
        assert await run.result() == "to the lawyers"
        assert sum(record.kind == "step" for record in await run.history()) == 3


if __name__ == "__main__":
    for test in (
        test_a_customer_who_pays_is_reminded_no_more,
        test_a_customer_who_does_not_pay_is_reminded_three_times,
    ):
        asyncio.run(test())
        print(f"{test.__name__} passes")
