"""Perdure, as it is in this working copy."""

from __future__ import annotations

import asyncio
import time

from reporting import Task, latencies, timed

from benchmarks.bench import none_left, probing, until
from benchmarks.programs import ALL, parallel, resumed, sleeper, steps
from perdure import Call, Engine, Status
from perdure.cli.workers import fast_loop, tune_collector

UNFINISHED = (Status.PENDING, Status.RUNNING, Status.WAITING)


async def main(task: Task) -> None:
    async with Engine(task.dsn, ALL) as engine:
        await engine.runs.list(limit=1)
        match task.workload:
            case "w3":
                await _one_by_one(task, engine)
            case "w6":
                await _resume(task, engine)
            case _:
                await _queued(task, engine)


async def _queued(task: Task, engine: Engine) -> None:
    spent: dict[str, float] = {}
    with timed(spent, "start_s"):
        for start in range(0, task.runs, 1000):
            await engine.start_many([_call(task) for _ in range(start, min(start + 1000, task.runs))])
    with timed(spent, "work_s"):
        async with probing(task.expected) as probe, engine.worker(slots=task.slots):
            if task.workload != "w5":
                await probe.reached.wait()
            await until(lambda: none_left(engine, *UNFINISHED), every=0.01)
    task.report(**spent)


def _call(task: Task) -> Call[object]:
    if task.workload == "w5":
        return sleeper(task.sleep)
    return parallel(task.steps) if task.workload == "w4" else steps(task.steps)


async def _one_by_one(task: Task, engine: Engine) -> None:
    async def call(number: int) -> None:
        await (await engine.start(steps(1))).result()

    async with engine.worker(slots=task.slots):
        task.report(latencies_ms=await latencies(call, task.runs))


async def _resume(task: Task, engine: Engine) -> None:
    """Make a history, give the run back, and measure until a new worker begins the first new step."""
    await engine.start(resumed(task.steps))
    took = 0.0
    for expected in (task.steps + 1, 1):
        async with probing(expected) as probe:
            worker = engine.worker()
            begun = time.perf_counter()
            await worker.start()
            await probe.reached.wait()
            took = time.perf_counter() - begun
            await worker.stop(grace=0)
    task.report(work_s=took)


if __name__ == "__main__":
    tune_collector()
    with asyncio.Runner(loop_factory=fast_loop()) as runner:
        runner.run(main(Task()))
