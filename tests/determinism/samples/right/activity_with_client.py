"""An activity with a client of its own; the workflow only calls it."""

import asyncio
from datetime import datetime

import httpx

from perdure import Context, activity, workflow
from perdure.testing import Environment


@activity("samples.right.lookup.v1", start_to_close="30s")
async def lookup(name: str) -> str:
    async with httpx.AsyncClient(timeout=1) as client:
        try:
            answer = await client.get(f"http://127.0.0.1:9/{name}")
        except httpx.ConnectError:
            return f"{name} unknown in {datetime.now().year // 1000}xxx"
        return answer.text


@workflow("samples.right.enrich.v1")
async def enrich(ctx: Context, names: list[str]) -> list[str]:
    found = await asyncio.gather(*(ctx.call(lookup(name)) for name in names))
    call = lookup(names[0]).options(retry=1)
    child = ctx.spawn(call, id="again")
    return [*found, await child]


WORKFLOWS = [enrich, lookup]


async def drive(env: Environment) -> object:
    run = await env.start(enrich(["ann", "bob"]))
    return await run.result()
