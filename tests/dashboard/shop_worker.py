"""A worker of the shop in a process of its own: `python -m tests.dashboard.shop_worker URL`."""

from __future__ import annotations

import asyncio
import sys

from perdure import Engine
from tests.dashboard.shop import WORKFLOWS


async def main(url: str) -> None:
    """Work until the process ends."""
    async with Engine(url, WORKFLOWS) as engine, engine.worker(lease="6s", grace=0):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
