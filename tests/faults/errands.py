"""Activities for the tests of timeouts with real worker processes: each does until the test makes a file what the test
is about."""

from __future__ import annotations

import asyncio
import time

from perdure import Context, Retry, activity, activity_info, workflow
from perdure.errors import Expired, NotStarted
from perdure.workflow.discover import Definable
from tests.faults.app import begin, note
from tests.faults.labour import gate

TRY_AGAIN = Retry.fixed(0.02, attempts=3)


@activity("errands.walk.v1", retry=TRY_AGAIN, heartbeat="1m")
async def walk(ledger: str) -> str:
    """Tells how far it has got, and goes on from where an earlier attempt was."""
    info = activity_info()
    value = begin(ledger, f"walk from {info.last_heartbeat} at attempt {info.attempt}")
    house = info.last_heartbeat or 0
    while not gate(ledger).exists():
        house += 1
        info.heartbeat(house)
        # As it walks: the test makes a file when it has walked enough.
        await asyncio.sleep(0.02)
    note(ledger, did="walked", value=value)
    return value


@activity("errands.stand.v1", retry=TRY_AGAIN, heartbeat=0.4)
def stand(ledger: str) -> str:
    """Gives no sign of life, at its first attempt."""
    value = begin(ledger, "stand")
    while activity_info().attempt == 1 and not gate(ledger).exists():
        # The test makes a file.
        time.sleep(0.01)
    return value


@activity("errands.dawdle.v1", retry=TRY_AGAIN, start_to_close=1.0)
async def dawdle(ledger: str) -> str:
    """Takes too long, at its first attempt."""
    value = begin(ledger, "dawdle")
    if activity_info().attempt == 1:
        await asyncio.Event().wait()
    while not gate(ledger).exists():  # noqa: ASYNC110 - the test makes a file
        await asyncio.sleep(0.01)
    return value


@activity("errands.late.v1", retry=TRY_AGAIN, schedule_to_close=4.0)
async def late(ledger: str) -> str:
    """Is not done in all its time."""
    begin(ledger, "late")
    await asyncio.Event().wait()
    return "impossible"


@activity("errands.unbegun.v1", schedule_to_start=0.3, schedule_to_close="1h", queue="elsewhere")
def unbegun(ledger: str) -> str:
    return begin(ledger, "unbegun")


@activity("errands.kill.v1", retry=TRY_AGAIN)
def kill(ledger: str) -> str:
    """Takes its process with it."""
    import os
    import signal

    begin(ledger, "kill")
    os.kill(os.getpid(), signal.SIGKILL)
    return "survived"


@workflow("errands.send.v1")
async def send(ctx: Context, ledger: str, name: str) -> str:
    """Waits for one of them, and tells what came of it."""
    call = {one.type: one for one in (walk, stand, dawdle, late, unbegun, kill)}[f"errands.{name}.v1"](ledger)
    try:
        return await ctx.call(call, id=name)
    except NotStarted:
        return "not started"
    except Expired:
        return "expired"


WORKFLOWS: list[Definable] = [walk, stand, dawdle, late, unbegun, kill, send]
