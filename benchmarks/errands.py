"""w9: cost of an activity: started directly, awaited by a workflow of its own, awaited by one workflow for all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.bench import Bench, Result, Spent, median, work_off
from benchmarks.programs import awaiting, errand, fanning
from perdure import Call


async def w9(bench: Bench) -> Result:
    """Activities that were queued up front; then as many, each awaited; then as many, awaited together."""
    sizes = bench.sizes
    count = sizes.runs
    forms: dict[str, Callable[[], Sequence[Call[Any]]]] = {
        "direct": lambda: [errand(number) for number in range(count)],
        "awaited": lambda: [awaiting(number) for number in range(count)],
        "together": lambda: [fanning(count)],
    }
    spent: dict[str, list[Spent]] = {name: [] for name in forms}
    async with bench.engine() as engine:
        for _ in range(sizes.rounds):
            bench.raw.sample()
            for name, calls in forms.items():
                spent[name].append(await work_off(engine, calls(), count, sizes.slots))
    wall = {name: median([one.wall for one in each]) for name, each in spent.items()}
    cpu = {name: median([one.cpu for one in each]) / count * 1e6 for name, each in spent.items()}
    return bench.result(
        runs=count,
        runs_per_s=count / wall["direct"],
        cpu_us_per_activity=cpu["direct"],
        awaited_per_s=count / wall["awaited"],
        cpu_us_per_awaited=cpu["awaited"],
        together_per_s=count / wall["together"],
        cpu_us_per_one_of_many=cpu["together"],
    )
