"""DBOS Transact for Python."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from typing import Any

from dbos import DBOS, DBOSClient, SetWorkflowID, run_dbos_database_migrations
from reporting import Task, latencies, timed, until

task = Task()
gate = asyncio.Event()


@DBOS.step()
async def pay(number: int) -> dict[str, Any]:
    return task.step()


@DBOS.step()
async def hold() -> None:
    gate.set()
    await asyncio.Event().wait()


@DBOS.workflow()
async def steps(count: int) -> int:
    total = 0
    for number in range(count):
        total += (await pay(number))["cents"]
    return total


@DBOS.workflow()
async def parallel(count: int) -> int:
    return sum(receipt["cents"] for receipt in await asyncio.gather(*[pay(number) for number in range(count)]))


@DBOS.workflow()
async def sleeper(seconds: float) -> None:
    await DBOS.sleep_async(seconds)


@DBOS.workflow()
async def resumed(count: int) -> None:
    for number in range(count):
        await pay(number)
    await hold()


async def main() -> None:
    run_dbos_database_migrations(task.dsn)
    DBOS(config={"name": "bench", "system_database_url": task.dsn, "application_version": "1", "log_level": "ERROR"})
    match task.workload:
        case "w3":
            await _one_by_one()
        case "w6" | "w6-prepare":
            await _resume()
        case _:
            await _queued()


async def _queued() -> None:
    program, argument = {
        "w4": (parallel, task.steps),
        "w5": (sleeper, task.sleep),
    }.get(task.workload, (steps, task.steps))
    client = DBOSClient(system_database_url=task.dsn)
    name = program.__qualname__
    spent: dict[str, float] = {}

    async def over() -> bool:
        return not await client.list_workflows_async(status=["ENQUEUED", "PENDING"], limit=1)

    with timed(spent, "start_s"):
        for start in range(0, task.runs, 100):
            options: Any = {"queue_name": "bench", "workflow_name": name, "app_version": "1"}
            count = min(100, task.runs - start)
            await asyncio.gather(*[client.enqueue_async(options, argument) for _ in range(count)])
    with timed(spent, "work_s"):
        DBOS.launch()
        await DBOS.register_queue_async("bench")
        if task.workload != "w5":
            await task.reached.wait()
        await until(over)
    task.report(**spent)
    os._exit(0)


async def _one_by_one() -> None:
    async def call(number: int) -> None:
        await (await DBOS.start_workflow_async(steps, 1)).get_result()

    DBOS.launch()
    task.report(latencies_ms=await latencies(call, task.runs))
    os._exit(0)


async def _resume() -> None:
    """Recovery of the run of a process that was killed."""
    begun = time.perf_counter()
    DBOS.launch()
    if task.workload == "w6-prepare":
        with SetWorkflowID("resumed"):
            await DBOS.start_workflow_async(resumed, task.steps)
    await gate.wait()
    if task.workload == "w6-prepare":
        os.kill(os.getpid(), signal.SIGKILL)
    task.report(work_s=time.perf_counter() - begun)
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(main())
