"""Prints and logs everywhere: they repeat on replay and change nothing."""

import logging
import sys
import traceback

from perdure import Context, StepFailed, workflow
from perdure.errors import Fatal
from perdure.testing import Environment

log = logging.getLogger("samples.chatty")


async def flaky(number: int) -> int:
    if number == 2:
        raise Fatal("two is not allowed")
    return number


@workflow("samples.right.chatty.v1")
async def add_up(ctx: Context, numbers: list[int]) -> int:
    print("adding", numbers, file=sys.stderr)
    total = 0
    for number in numbers:
        try:
            total += await ctx.step(flaky, number)
        except (Fatal, StepFailed) as error:
            log.warning("skipped %s", number, exc_info=error)
            ctx.log.info("skipped: %s", traceback.format_exception_only(error))
            ctx.log.debug("%s", "".join(traceback.format_exception(error)))
    log.info("total: %s", total)
    return total


WORKFLOWS = [add_up]


async def drive(env: Environment) -> object:
    run = await env.start(add_up([1, 2, 3]))
    return await run.result()
