"""A pool of consumers over a queue, with a semaphore and a task group, inside one workflow."""

import asyncio
from contextlib import AsyncExitStack

from perdure import Context, workflow
from perdure.testing import Environment


async def crawl(url: str) -> int:
    return len(url)


class Pool:
    def __init__(self, ctx: Context, size: int) -> None:
        self.ctx = ctx
        self.queue: asyncio.Queue[str] = asyncio.Queue()
        self.permits = asyncio.Semaphore(size)
        self.found: dict[str, int] = {}

    async def consume(self) -> None:
        while not self.queue.empty():
            url = self.queue.get_nowait()
            async with self.permits:
                self.found[url] = await self.ctx.step(crawl, url)


@workflow("samples.right.pool.v1")
async def crawl_all(ctx: Context, urls: list[str], consumers: int = 2) -> dict[str, int]:
    pool = Pool(ctx, 2)
    for url in urls:
        await pool.queue.put(url)
    async with AsyncExitStack() as stack:
        group = await stack.enter_async_context(asyncio.TaskGroup())
        for _ in range(consumers):
            group.create_task(pool.consume())
    return pool.found


WORKFLOWS = [crawl_all]


async def drive(env: Environment) -> object:
    run = await env.start(crawl_all(["a", "bb", "ccc"]))
    return await run.result()
