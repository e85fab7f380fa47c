"""What is worked on under stress: runs of a few steps and activities that take their time, fail now and then, and carry something."""

from __future__ import annotations

import asyncio
import random

from msgspec import Struct

from perdure.client.engine import Engine
from perdure.core.policy.retry import Retry
from perdure.workflow.activity import activity
from perdure.workflow.context import Context
from perdure.workflow.definition import workflow

#: The environment variable that tells worker processes what to do, as JSON.
ENVIRONMENT = "PERDURE_STRESS"


class Load(Struct, frozen=True, kw_only=True):
    """How much of what."""

    url: str
    runs: int
    concurrent: int
    steps: int
    activities: int
    #: The part of all attempts that fail, and how often each is tried.
    failure_rate: float
    attempts: int
    #: Seconds that a step takes.
    latency: float
    #: Bytes that a run is started with and that each step gives.
    payload: int
    audit: str


class UnderStress(Exception):
    """An attempt that was meant to fail."""


def engine_of(load: Load) -> Engine:
    """The engine whose workflow does what the load says."""
    retry = Retry(attempts=load.attempts, initial=0, jitter=0)

    async def work(number: int) -> str:
        if load.latency:
            await asyncio.sleep(load.latency)
        if random.random() < load.failure_rate:  # noqa: S311 - nobody needs to guess it
            raise UnderStress(f"step {number} was meant to fail")
        return "x" * load.payload

    @activity("perdure.stress.activity.v1", retry=retry)
    async def work_elsewhere(number: int) -> str:
        return await work(number)

    @workflow("perdure.stress.v1")
    async def stressed(ctx: Context, payload: str) -> int:
        for number in range(load.steps):
            await ctx.options(name="work", retry=retry).step(work, number)
        for number in range(load.activities):
            await ctx.call(work_elsewhere(number))
        return len(payload)

    return Engine(load.url, [stressed, work_elsewhere], audit=load.audit)
