"""Memory of waiting runs: in the table, and resident in the worker, each measured in a process of its own."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from pathlib import Path

from benchmarks import filling
from benchmarks.bench import Bench, Result, none_left, probing, until
from benchmarks.programs import ALL, waiter
from perdure import Engine, Status
from perdure.admin import Reason

IDLE_SECONDS = 2.0


async def memory(bench: Bench) -> Result:
    """RSS of an idle worker on an empty and on a full table; bytes of a run that is parked and stays resident."""
    bench.raw.sample()
    async with bench.engine():
        pass
    empty = await _in_child("idle", bench.url)
    resident = await _in_child("resident", f"{bench.url}", str(bench.sizes.runs))
    await filling.fill(bench.where, filling.parked(bench.sizes.sleeping, waiter.type))
    full = await _in_child("idle", bench.url)
    return bench.result(
        runs=bench.sizes.sleeping,
        rss_idle_mb=empty / 1e6,
        rss_growth_mb=(full - empty) / 1e6,
        resident_runs=bench.sizes.runs,
        resident_bytes_per_run=round(resident / bench.sizes.runs),
    )


async def _in_child(*arguments: str) -> int:
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.memory", *arguments, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await child.communicate()
    if child.returncode:
        raise RuntimeError(f"measuring {arguments[0]} memory failed with status {child.returncode}")
    return int(output)


def rss() -> int:
    """Bytes of memory that this process has."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


async def _idle(url: str) -> int:
    async with Engine(url, ALL) as engine, engine.worker():
        await asyncio.sleep(IDLE_SECONDS)
        return rss()


async def _resident(url: str, count: int) -> int:
    async with Engine(url, ALL) as engine, engine.worker(resident=2 * count):
        await _park(engine, max(1, count // 4))
        before = rss()
        await _park(engine, count)
        return rss() - before


async def _park(engine: Engine, count: int) -> None:
    async with probing(count) as probe:
        handles = []
        for start in range(0, count, 1000):
            handles += await engine.start_many([waiter(number) for number in range(start, min(start + 1000, count))])
        await probe.reached.wait()
        await until(lambda: none_left(engine, Status.PENDING, Status.RUNNING), every=0.05)
        run = await handles[-1].info()
        if run.reason is not Reason.MESSAGE:
            raise RuntimeError(f"run {run.id} is {run.status}, not parked; the measurement is void")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["idle", url]:
            print(asyncio.run(_idle(url)))
        case ["resident", url, count]:
            print(asyncio.run(_resident(url, int(count))))
