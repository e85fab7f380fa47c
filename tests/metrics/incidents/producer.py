"""The producer of the shop: starts orders at random moments, each in a trace of its own."""

from __future__ import annotations

import asyncio
import random
import sys

from perdure import Engine, Every
from perdure.errors import PerdureError
from perdure.tracing import Tracing
from tests.metrics.incidents import shop


async def main(rate: float) -> None:
    """Start so many orders a second, on average."""
    made = shop.provider("checkout")
    tracer = made.get_tracer("checkout")
    async with Engine(shop.engine.url, [shop.order, shop.stock, shop.mail], tracing=Tracing(made)) as engine:
        await engine.schedules.create("stock", shop.stock(), Every("30s"))
        number = 0
        starting: set[asyncio.Task[None]] = set()

        async def start(number: int) -> None:
            with tracer.start_as_current_span("POST /orders"):
                try:
                    await engine.start(shop.order(number))
                except PerdureError as error:
                    print(f"order {number} was not started: {error}", flush=True)

        while True:
            await asyncio.sleep(random.expovariate(rate))
            number += 1
            task = asyncio.create_task(start(number))
            starting.add(task)
            task.add_done_callback(starting.discard)


if __name__ == "__main__":
    asyncio.run(main(float(sys.argv[1])))
