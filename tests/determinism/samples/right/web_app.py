"""A whole service in one module: handlers with an engine, clocks and requests, and one clean workflow."""

import os
import time
import uuid
from datetime import datetime
from typing import Any

import requests

from perdure import Context, Engine, workflow
from perdure.testing import Environment

STARTED = time.time()
calls: dict[str, int] = {}


def fetch_user(user: str) -> str:
    try:
        return requests.get(f"http://127.0.0.1:9/{user}", timeout=1).text
    except requests.RequestException:
        return f"{user} at {datetime.now().year > 2000}"


@workflow("samples.right.web.v1")
async def export(ctx: Context, user: str) -> str:
    found = await ctx.step(fetch_user, user)
    await ctx.sleep("1m")
    return found


WORKFLOWS = [export]
engine = Engine("sqlite://", WORKFLOWS)


async def post_export(user: str) -> dict[str, Any]:
    calls[user] = calls.get(user, 0) + 1
    run = await engine.start(export(user), id=f"export-{uuid.uuid4()}")
    return {"id": run.id, "host": os.uname().nodename, "uptime": time.time() - STARTED}


async def get_export(run_id: str) -> Any:
    return await (await engine.get(run_id)).result(timeout=5)


async def drive(env: Environment) -> object:
    run = await env.start(export("ann"))
    await env.advance("1m")
    return await run.result()
