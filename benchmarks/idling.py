"""idle: a worker process that has nothing to do, and how fast it wakes for what another process starts."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.bench import Bench, Result, percentile
from benchmarks.programs import stamped
from perdure import Engine
from perdure.cli.workers import fast_loop, tune_collector

#: Seconds of idleness before each start, and before the idle worker is watched.
PAUSE = 0.7
#: Starts in a round.
STARTS = 4


async def idle(bench: Bench) -> Result:
    """Start runs one at a time beside an idle worker, then leave the worker alone and read its processor time."""
    bench.raw.sample()
    rounds = bench.sizes.rounds
    async with bench.engine() as engine:
        await engine.open()
        command = [sys.executable, "-m", "benchmarks.idling", bench.url]
        with subprocess.Popen(command) as worker:  # noqa: ASYNC220 # before anything is measured
            try:
                late = await _wake(engine, rounds * STARTS)
                await engine.close()
                await asyncio.sleep(4 * PAUSE)
                before, since = _cpu_seconds(worker.pid), time.monotonic()
                await asyncio.sleep(4 * rounds)
                share = (_cpu_seconds(worker.pid) - before) / (time.monotonic() - since)
            finally:
                worker.terminate()
    return bench.result(
        runs=len(late), steps=len(late), p50_ms=percentile(late, 0.5), p99_ms=percentile(late, 0.99),
        idle_cpu_percent=100 * share,
    )  # fmt: skip


async def _wake(engine: Engine, count: int) -> list[float]:
    """Milliseconds from the commit of each start to its step in the other process, after a while of idleness."""
    await (await engine.start(stamped())).result("90s")
    late: list[float] = []
    for _ in range(count):
        await asyncio.sleep(PAUSE)
        run = await engine.start(stamped())
        committed = time.time()
        late.append((await run.result("90s") - committed) * 1e3)
    return late


def _cpu_seconds(pid: int) -> float:
    """Processor time of a process so far; Linux only."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def _work(url: str) -> None:
    await Engine(url, [stamped]).worker().run()


if __name__ == "__main__":
    tune_collector()
    with asyncio.Runner(loop_factory=fast_loop()) as runner:
        runner.run(_work(sys.argv[1]))
