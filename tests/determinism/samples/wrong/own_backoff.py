"""A hand-made retry loop that blocks the worker between attempts."""

from time import sleep

from perdure import Context, StepFailed, workflow
from perdure.errors import Fatal
from perdure.testing import Environment

_failures = iter([True, True, False])


async def push_to_erp(document: str) -> str:
    if next(_failures, False):
        raise Fatal("the ERP is busy")
    return f"pushed {document}"


def delay_before(attempt: int) -> float:
    return min(0.01 * (attempt + 1), 1.0)


@workflow("samples.erp.v1")
async def push(ctx: Context, document: str) -> str:
    for attempt in range(5):
        try:
            return await ctx.step(push_to_erp, document)
        except (Fatal, StepFailed):
            ctx.log.warning("attempt %d failed", attempt)
            sleep(delay_before(attempt))  # mistake
    return "gave up"


WORKFLOWS = [push]


async def drive(env: Environment) -> object:
    run = await env.start(push("d-1"))
    return await run.result()
