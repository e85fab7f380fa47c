"""PgQueuer: a queue, so a run is one job and there are no steps."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.domain.types import QueueExecutionMode
from pgqueuer.models import Job
from pgqueuer.queries import Queries
from reporting import Task, latencies, timed

PAYLOAD = b'{"count":1}'


async def main(task: Task) -> None:
    queries = Queries(AsyncpgDriver(await asyncpg.connect(task.dsn)))
    await queries.install()
    queue = PgQueuer(AsyncpgDriver(await asyncpg.connect(task.dsn)))
    done: asyncio.Queue[bool] = asyncio.Queue()

    @queue.entrypoint("pay")
    async def pay(job: Job) -> None:
        task.step()
        if task.workload == "w3":
            done.put_nowait(True)

    if task.workload == "w3":
        await _one_by_one(task, queries, queue, done)
        return
    spent: dict[str, float] = {}
    later = timedelta(seconds=task.sleep) if task.workload == "w5" else None
    with timed(spent, "start_s"):
        for start in range(0, task.runs, 1000):
            count = min(1000, task.runs - start)
            await queries.enqueue(
                ["pay"] * count, [PAYLOAD] * count, [0] * count, None if later is None else [later] * count
            )
    with timed(spent, "work_s"):
        await queue.qm.run(mode=QueueExecutionMode.drain, batch_size=task.slots, max_concurrent_tasks=2 * task.slots)
    task.report(**spent)


async def _one_by_one(task: Task, queries: Queries, queue: PgQueuer, done: asyncio.Queue[bool]) -> None:
    async def call(number: int) -> None:
        await queries.enqueue("pay", PAYLOAD)
        await done.get()

    working = asyncio.ensure_future(queue.qm.run(batch_size=task.slots, max_concurrent_tasks=2 * task.slots))
    await asyncio.sleep(1)
    took = await latencies(call, task.runs)
    queue.qm.shutdown.set()
    await working
    task.report(latencies_ms=took)


if __name__ == "__main__":
    uvloop.run(main(Task()))
