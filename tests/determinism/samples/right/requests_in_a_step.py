"""A step that does everything a workflow may not: network, clock, sleep, randomness, environment."""

import os
import random
import time

import requests

from perdure import Context, Retry, step, workflow
from perdure.testing import Environment


@step(retry=Retry(attempts=2), timeout="20s")
def fetch(url: str) -> int:
    time.sleep(random.random() / 1000)
    started = time.monotonic()
    try:
        answer = requests.get(url, headers={"Authorization": os.environ.get("TOKEN", "")}, timeout=2)
    except requests.ConnectionError:
        return 503
    print(f"took {time.monotonic() - started}")
    return answer.status_code


@workflow("samples.right.ping.v1")
async def ping(ctx: Context, url: str) -> str:
    status = await ctx.step(fetch, url)
    while status >= 600:
        await ctx.sleep("1m")
        status = await ctx.step(fetch, url)
    return f"{url}: {status}"


WORKFLOWS = [ping]


async def drive(env: Environment) -> object:
    run = await env.start(ping("http://127.0.0.1:9/"))
    return await run.result()
