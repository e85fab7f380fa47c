"""types and large: many types in place of one, and large results in place of small ones, in turns."""

from __future__ import annotations

from benchmarks.bench import Bench, Result, Spent, median, work_off
from benchmarks.programs import LARGE, bulky, make_types, steps
from perdure import Engine

#: Types of a worker.
TYPES = 1000


async def types(bench: Bench) -> Result:
    """Workflows of one step: of one type, and spread over 1,000 types, in turns."""
    many, runs = make_types(TYPES), bench.sizes.runs
    one: list[Spent] = []
    spread: list[Spent] = []
    async with Engine(bench.url, [steps]) as single, Engine(bench.url, many) as wide:
        for _ in range(bench.sizes.rounds):
            bench.raw.sample()
            one.append(await work_off(single, [steps(1) for _ in range(runs)], runs, bench.sizes.slots))
            calls = [many[number % TYPES](1) for number in range(runs)]
            spread.append(await work_off(wide, calls, runs, bench.sizes.slots))
    return bench.result(
        runs=runs,
        steps=runs,
        runs_per_s=runs / median([spent.wall for spent in spread]),
        cpu_us_per_step=median([spent.cpu for spent in spread]) / runs * 1e6,
        types=TYPES,
        ratio_to_one_type=median([a.wall / b.wall for a, b in zip(one, spread, strict=True)]),
    )


async def large(bench: Bench) -> Result:
    """Workflows of ten sequential steps with small results, and with results of 100 KB, in turns."""
    runs = max(1, bench.sizes.runs // 20)
    each = 10
    small: list[Spent] = []
    big: list[Spent] = []
    async with bench.engine() as engine:
        for _ in range(bench.sizes.rounds):
            bench.raw.sample()
            small.append(await work_off(engine, [steps(each) for _ in range(runs)], runs * each, bench.sizes.slots))
            big.append(await work_off(engine, [bulky(each) for _ in range(runs)], runs * each, bench.sizes.slots))
    wall = median([spent.wall for spent in big])
    return bench.result(
        runs=runs,
        steps=runs * each,
        steps_per_s=runs * each / wall,
        cpu_us_per_step=median([spent.cpu for spent in big]) / (runs * each) * 1e6,
        bytes_per_result=len(LARGE),
        megabytes_per_s=runs * each * len(LARGE) / wall / 1e6,
        ratio_to_small_results=median([a.wall / b.wall for a, b in zip(small, big, strict=True)]),
    )
