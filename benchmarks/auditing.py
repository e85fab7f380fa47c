"""audit: what the levels of the audit trail cost, side by side."""

from __future__ import annotations

from benchmarks.bench import Bench, Result, Spent, median, work_off
from benchmarks.programs import steps
from perdure.admin import Audit

LEVELS = tuple(Audit)


async def audit(bench: Bench) -> Result:
    """Workflows of one step and of ten, with the audit trail in full, of the lifecycle, and off, in turns."""
    sizes = bench.sizes
    measured: dict[str, list[float]] = {}
    async with bench.engine() as engine:
        for number in range(sizes.rounds):
            bench.raw.sample()
            # Each comes first now and then: the tables grow, and the later one has more to do.
            levels = LEVELS[number % 3 :] + LEVELS[: number % 3]
            for each, unit in ((1, "run"), (10, "step")):
                runs = max(1, sizes.runs // each * 2 if each > 1 else sizes.runs)
                spent: dict[Audit, Spent] = {}
                for level in levels:
                    engine.audit.level = level
                    spent[level] = await work_off(engine, [steps(each) for _ in range(runs)], runs * each, sizes.slots)
                for level, one in spent.items():
                    found = {
                        f"{level.value}_{unit}s_per_s": runs * each / one.wall,
                        f"{level.value}_cpu_us_per_{unit}": one.cpu / (runs * each) * 1e6,
                        # Of the same round, so that a busy machine was as busy for both.
                        f"ratio_{level.value}_to_off_by_{unit}": one.wall / spent[Audit.OFF].wall,
                    }
                    for name, value in found.items():
                        measured.setdefault(name, []).append(value)
    # Other people's work only ever adds to the CPU that a round takes, by way of caches; the least is nearest to the
    # truth.
    figures = {name: (min if "cpu_us" in name else median)(values) for name, values in measured.items()}
    return bench.result(
        runs=sizes.runs,
        steps=sizes.runs * 2,
        **{name: one for name, one in figures.items() if "off_to_off" not in name},
    )
