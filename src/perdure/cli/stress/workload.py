"""Workload of a stress test: runs of steps and activities with a latency, a failure rate and a payload.

Worker processes read it from the environment and serve `perdure.cli.stress.workload:engine`.
"""

from __future__ import annotations

import asyncio
import os
import random

from msgspec import Struct

from perdure.client.engine import Engine
from perdure.core.codec.decoders import decoder_for
from perdure.core.policy.retry import Retry
from perdure.workflow.activity import activity
from perdure.workflow.context import Context
from perdure.workflow.definition import workflow

#: Environment variable with the workload of a worker process, as JSON.
ENVIRONMENT = "PERDURE_STRESS"


class Workload(Struct, frozen=True, kw_only=True):
    """Shape and number of the runs, and the database that holds them."""

    url: str
    runs: int
    concurrent: int
    steps: int
    activities: int
    #: Share of attempts that fail, and the maximum of attempts at each step.
    failure_rate: float
    attempts: int
    #: Seconds that a step takes.
    latency: float
    #: Bytes of the input of a run and of the result of each step.
    payload: int
    audit: str


class PlannedFailure(Exception):
    """Failure of an attempt that the failure rate asks for."""


def make_engine(load: Workload) -> Engine:
    """Return an engine with the workflow and the activity of the workload."""
    retry = Retry(attempts=load.attempts, initial=0, jitter=0)

    async def work(number: int) -> str:
        if load.latency:
            await asyncio.sleep(load.latency)
        if random.random() < load.failure_rate:  # noqa: S311 - not a secret
            raise PlannedFailure(f"step {number} was meant to fail")
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


def _engine_from_environment() -> Engine | None:
    encoded = os.environ.get(ENVIRONMENT)
    return None if encoded is None else make_engine(decoder_for(Workload).decode(encoded))


#: Engine of a worker process; None in other processes.
engine = _engine_from_environment()
