"""A worker process for the tests of breakers: `python -m tests.worker.breaking URL LEDGER [POINT HIT]`.

Its steps write down when they begin and end. They fail while there is a file `broken` beside the ledger, and otherwise
with the odds of one in five. With a crash point, the process dies there.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import time
from pathlib import Path

from perdure import Breaker, Context, Engine, Limit, Retry, activity, step, workflow
from perdure.testing.crash import CrashingHost, Trap

#: A worker that the machine stops for longer loses its permits while it is inside, and the bounds hold no more.
LEASE = 4.0
PROBES = 2
#: It never closes by itself: everything that passes is a probe.
BREAKER = Breaker("api", failures=1, successes=10**6, probes=PROBES, reset="50ms")
PATIENT = Retry(attempts=None, initial=0.01, max=0.05)
WIDE, NARROW = "wide", "narrow"


def note(ledger: str, what: str) -> None:
    line = f"{what} {os.getpid()} {time.monotonic_ns()}\n"
    with Path(ledger).open("ab", buffering=0) as file:
        file.write(line.encode())


async def call(ledger: str, where: str) -> None:
    note(ledger, f"{where} in")
    try:
        await asyncio.sleep(random.uniform(0.001, 0.01))  # so long a call takes
        if (Path(ledger).parent / "broken").exists() or (where == WIDE and random.random() < 0.2):
            raise ConnectionError("no answer")
    finally:
        note(ledger, f"{where} out")


@activity("breaking.act.v1", breaker=BREAKER, retry=PATIENT)
async def act(ledger: str) -> None:
    await call(ledger, WIDE)


@step(breaker=BREAKER, retry=PATIENT)
async def careful(ledger: str) -> None:
    await call(ledger, WIDE)


@step(limit=Limit("narrow", concurrency=2))
async def limited(ledger: str) -> None:
    await call(ledger, NARROW)


@workflow("breaking.flow.v1")
async def flow(ctx: Context, ledger: str) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(ctx.step(careful, ledger))
        group.create_task(ctx.step(limited, ledger))
    await ctx.step(limited, ledger)


WORKFLOWS = [act, flow]


async def main(url: str, ledger: str, point: str = "", hit: str = "1") -> None:
    system = CrashingHost(Trap(point=point, hit=int(hit)) if point else None)
    async with Engine(url, WORKFLOWS, system=system) as engine:
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        async with engine.worker(lease=LEASE, slots=6):
            note(ledger, "worker up")
            await stop.wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
