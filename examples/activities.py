"""Activities: functions that are runs of their own, with their own retries and timeouts.

Run it: python examples/activities.py
"""

from __future__ import annotations

import asyncio

from perdure import Context, Engine, Retry, activity, activity_info, workflow


@activity("pages.fetch.v1", start_to_close="10s", retry=Retry(attempts=3, initial=0.01))
async def fetch(url: str) -> int:
    info = activity_info()
    if "flaky" in url and info.attempt < 3:
        raise ConnectionError(f"attempt {info.attempt} of {info.max_attempts}: no answer")
    return len(url)


@activity("pages.store.v1", heartbeat="5s")
def store(sizes: list[int]) -> int:
    for number, _ in enumerate(sizes):
        # If this process dies here, the next attempt finds the number in `last_heartbeat`.
        activity_info().heartbeat(number)
    return sum(sizes)


@workflow("pages.crawl.v1")
async def crawl(ctx: Context, urls: list[str]) -> int:
    sizes = await asyncio.gather(*(ctx.call(fetch(url)) for url in urls))
    return await ctx.call(store(sizes))


async def main() -> None:
    async with Engine("sqlite://", [crawl, fetch, store]) as engine, engine.worker():
        run = await engine.start(crawl(["a.example", "flaky.example"]), id="c")
        print(f"{await run.result()} characters")
        # Anybody may start one, without a workflow around it.
        alone = await engine.start(fetch("flaky.example"), id="alone")
        print(await alone.result())
        for record in await alone.history():
            print(f"attempt {record.attempts} failed")


if __name__ == "__main__":
    asyncio.run(main())
