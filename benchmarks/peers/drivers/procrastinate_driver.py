"""Procrastinate: a queue, so a run is one job and there are no steps."""

from __future__ import annotations

import asyncio

import procrastinate
from reporting import Task, latencies, timed


async def main(task: Task) -> None:
    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=task.dsn))
    done: asyncio.Queue[bool] = asyncio.Queue()

    @app.task(name="pay")
    async def pay(number: int) -> None:
        task.step()
        if task.workload == "w3":
            done.put_nowait(True)

    async def call(number: int) -> None:
        await pay.defer_async(number=number)
        await done.get()

    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        spent: dict[str, float] = {}
        if task.workload == "w3":
            working = asyncio.ensure_future(app.run_worker_async(concurrency=10, install_signal_handlers=False))
            await asyncio.sleep(1)
            took = await latencies(call, task.runs)
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
            task.report(latencies_ms=took)
            return
        with timed(spent, "start_s"):
            for start in range(0, task.runs, 1000):
                numbers = range(start, min(start + 1000, task.runs))
                await pay.batch_defer_async(*({"number": number} for number in numbers))
        with timed(spent, "work_s"):
            await app.run_worker_async(concurrency=10, wait=False, install_signal_handlers=False)
        task.report(**spent)


if __name__ == "__main__":
    asyncio.run(main(Task()))
