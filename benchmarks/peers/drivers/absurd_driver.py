"""Absurd: its schema is in the package of its command-line tool."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
from absurd_sdk import AsyncAbsurd, AsyncTaskContext
from absurdctl import BUNDLED_SCHEMA_SQL
from reporting import Task, latencies, timed, until

LEFT = "SELECT NOT EXISTS (SELECT FROM absurd.t_default WHERE state NOT IN ('completed', 'failed', 'cancelled'))"


async def main(task: Task) -> None:
    async with await psycopg.AsyncConnection.connect(task.dsn, autocommit=True) as own:
        await own.execute(BUNDLED_SCHEMA_SQL)
        app = AsyncAbsurd(await psycopg.AsyncConnection.connect(task.dsn, autocommit=True))
        await app.create_queue()
        _register(app, task)

        async def over() -> bool:
            row = await (await own.execute(LEFT)).fetchone()
            return bool(row and row[0])

        if task.workload == "w3":
            await _one_by_one(app, task)
            return
        spent: dict[str, float] = {}
        kind, argument = ("sleeper", task.sleep) if task.workload == "w5" else ("steps", task.steps)
        with timed(spent, "start_s"):
            for _ in range(task.runs):
                await app.spawn(kind, {"value": argument})
        with timed(spent, "work_s"):
            working = asyncio.ensure_future(app.start_worker(concurrency=task.slots))
            if task.workload != "w5":
                await task.reached.wait()
            await until(over)
        task.report(**spent)
        app.stop_worker()
        working.cancel()


def _register(app: AsyncAbsurd, task: Task) -> None:
    async def pay() -> dict[str, Any]:
        return task.step()

    @app.register_task("steps")
    async def steps(params: Any, ctx: AsyncTaskContext) -> int:
        total = 0
        for _ in range(params["value"]):
            total += (await ctx.step("pay", pay))["cents"]
        return total

    @app.register_task("sleeper")
    async def sleeper(params: Any, ctx: AsyncTaskContext) -> None:
        await ctx.sleep_for("sleep", params["value"])


async def _one_by_one(app: AsyncAbsurd, task: Task) -> None:
    client = AsyncAbsurd(await psycopg.AsyncConnection.connect(task.dsn, autocommit=True))

    async def call(number: int) -> None:
        spawned = await client.spawn("steps", {"value": 1}, queue="default")
        await client.await_task_result(spawned["task_id"])

    working = asyncio.ensure_future(app.start_worker(concurrency=task.slots))
    took = await latencies(call, task.runs)
    app.stop_worker()
    working.cancel()
    task.report(latencies_ms=took)


if __name__ == "__main__":
    asyncio.run(main(Task()))
