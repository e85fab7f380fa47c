"""w3: how long one run, and one step, takes when nothing else is going on."""

from __future__ import annotations

import time
from itertools import pairwise

from benchmarks.bench import Bench, Result, median, percentile, probing
from benchmarks.programs import steps
from perdure import Engine

#: Sequential steps in the one run that step latency is taken from.
STEPS = 100


async def w3(bench: Bench) -> Result:
    """One run at a time, from start to result; and from step to step within one run."""
    runs = max(1, bench.sizes.runs // 10)
    latencies: list[float] = []
    gaps: list[float] = []
    ratios: list[float] = []
    cpu_total = 0.0
    async with bench.engine() as engine:
        for _ in range(bench.sizes.rounds):
            raw = bench.raw.sample()
            async with engine.worker(slots=bench.sizes.slots):
                await _start_to_result(engine)  # the first one after a worker's start is not what is asked for
                cpu = time.process_time()
                latencies += [await _start_to_result(engine) for _ in range(runs)]
                cpu_total += time.process_time() - cpu
                between = await _step_to_step(engine)
            gaps += between
            ratios.append(median(between) * 1e3 / raw.commit_p50_ms)
    total = runs * bench.sizes.rounds
    return bench.result(
        runs=total,
        steps=total,
        runs_per_s=total / sum(latencies),
        steps_per_s=total / sum(latencies),
        cpu_us_per_step=cpu_total / total * 1e6,
        p50_ms=percentile(latencies, 0.5) * 1e3,
        p99_ms=percentile(latencies, 0.99) * 1e3,
        step_p50_ms=percentile(gaps, 0.5) * 1e3,
        step_p99_ms=percentile(gaps, 0.99) * 1e3,
        ratio_step_to_raw_commit=median(ratios),
    )


async def _start_to_result(engine: Engine) -> float:
    begun = time.perf_counter()
    await (await engine.start(steps(1))).result()
    return time.perf_counter() - begun


async def _step_to_step(engine: Engine) -> list[float]:
    async with probing(STEPS) as probe:
        await (await engine.start(steps(STEPS))).result()
    return [later - earlier for earlier, later in pairwise(probe.times)]
