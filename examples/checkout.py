"""An order: parallel steps, a step that fails at first, and a wait.

Run it: python examples/checkout.py
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from perdure import Context, Engine, Retry, step, step_info, workflow


@dataclass
class Order:
    id: str
    item: str
    cents: int


@step(retry=Retry(attempts=5, initial="50ms"), timeout="30s")
def charge(order: Order) -> str:
    if step_info().attempt == 1:
        raise ConnectionError("the card network is down")
    return f"receipt for {order.cents / 100:.2f}"


async def reserve(item: str) -> str:
    return f"{item} is on shelf 7"


def ship(order: Order) -> str:
    return f"parcel {order.id}"


@workflow("shop.checkout.v1")
async def checkout(ctx: Context, order: Order) -> str:
    receipt, place = await asyncio.gather(ctx.step(charge, order), ctx.step(reserve, order.item))
    ctx.log.info("%s, %s", receipt, place)
    await ctx.sleep("200ms")  # it could be "3d"
    parcel = await ctx.step(ship, order)
    return f"{parcel} with a {receipt}"


async def main() -> None:
    async with Engine("sqlite://", [checkout]) as engine, engine.worker():
        run = await engine.start(checkout(Order("o-42", "a blue vase", 4200)), id="o-42")
        print(await run.result())
        for record in await run.history():
            if record.failed:
                print(f"{record.location} failed at attempt {record.attempts} and was tried again")


if __name__ == "__main__":
    asyncio.run(main())
