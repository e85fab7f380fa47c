"""w5: many runs that sleep and become due together."""

from __future__ import annotations

import time

from benchmarks.bench import Bench, Result, none_left, percentile, until
from benchmarks.programs import sleeper
from perdure import Engine, Status
from perdure.admin import Run


async def w5(bench: Bench) -> Result:
    """Start them, let them sleep, and see how late the last one is."""
    sizes = bench.sizes
    count = sizes.runs * 5
    for _ in range(2):
        bench.raw.sample()
    async with bench.engine() as engine:
        calls = [sleeper(sizes.sleep) for _ in range(count)]
        for start in range(0, count, 1000):
            await engine.start_many(calls[start : start + 1000])
        wall, cpu = time.perf_counter(), time.process_time()
        async with engine.worker(slots=sizes.slots):
            await until(lambda: none_left(engine, Status.PENDING, Status.RUNNING, Status.WAITING), every=0.1)
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        runs = await _everything(engine)
    for _ in range(3):
        bench.raw.sample()
    due = [run.started_at + int(sizes.sleep * 1e6) for run in runs]
    late = [(run.finished_at - when) / 1e3 for run, when in zip(runs, due, strict=True)]
    return bench.result(
        runs=count,
        steps=0,
        runs_per_s=count / wall,
        p50_ms=percentile(late, 0.5),
        p99_ms=percentile(late, 0.99),
        cpu_us_per_run=cpu / count * 1e6,
        parked_after_s=(max(run.started_at for run in runs) - min(run.started_at for run in runs)) / 1e6,
        done_after_last_due_s=(max(run.finished_at for run in runs) - max(due)) / 1e6,
        latest_s=max(late) / 1e3,
    )


async def _everything(engine: Engine) -> list[Run]:
    runs: list[Run] = []
    cursor: str | None = None
    while True:
        page = await engine.runs.list(status=Status.COMPLETED, limit=1000, cursor=cursor)
        runs += page.runs
        cursor = page.cursor
        if cursor is None:
            return runs
