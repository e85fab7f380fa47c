"""w1, w2 and w4: how much one worker gets through."""

from __future__ import annotations

from benchmarks.bench import Bench, Result, median, work_off
from benchmarks.programs import parallel, steps


async def w1(bench: Bench) -> Result:
    """Workflows of one step, queued up front."""
    return await _sequential(bench, 1)


async def w2(bench: Bench) -> Result:
    """Workflows of ten sequential steps, queued up front."""
    return await _sequential(bench, 10)


async def _sequential(bench: Bench, each: int) -> Result:
    sizes = bench.sizes
    # Enough of them that what is measured is the work, and not how a worker starts and how the last runs end.
    runs = max(1, sizes.runs if each > 1 else 5 * sizes.runs)
    walls, cpus, ratios = [], [], []
    async with bench.engine() as engine:
        for _ in range(sizes.rounds):
            raw = bench.raw.sample()
            spent = await work_off(engine, [steps(each) for _ in range(runs)], runs * each, sizes.slots)
            walls.append(spent.wall)
            cpus.append(spent.cpu)
            ratios.append(runs * each / spent.wall / raw.commits_per_s)
    wall = median(walls)
    return bench.result(
        runs=runs,
        steps=runs * each,
        runs_per_s=runs / wall,
        steps_per_s=runs * each / wall,
        cpu_us_per_step=median(cpus) / (runs * each) * 1e6,
        ratio_steps_to_raw_commits=median(ratios),
    )


async def w4(bench: Bench) -> Result:
    """Parallel steps in one run."""
    count = bench.sizes.steps
    walls, cpus, ratios = [], [], []
    async with bench.engine() as engine:
        for _ in range(bench.sizes.rounds):
            raw = bench.raw.sample()
            spent = await work_off(engine, [parallel(count)], count, bench.sizes.slots)
            walls.append(spent.wall)
            cpus.append(spent.cpu)
            ratios.append(count / spent.wall / raw.commits_per_s)
    wall = median(walls)
    return bench.result(
        runs=1,
        steps=count,
        runs_per_s=1 / wall,
        steps_per_s=count / wall,
        cpu_us_per_step=median(cpus) / count * 1e6,
        p50_ms=wall * 1e3,
        p99_ms=max(walls) * 1e3,
        ratio_steps_to_raw_commits=median(ratios),
    )
