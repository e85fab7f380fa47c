"""observed: what metrics and traces cost, side by side with neither."""

from __future__ import annotations

import contextlib

from benchmarks.bench import Bench, Result, Spent, median, work_off
from benchmarks.programs import ALL, steps
from perdure import Engine

#: `alone` is measured twice: what the two differ by is noise.
KINDS = ("alone", "metrics", "traces", "again")
#: Share of the traces that are recorded.
SAMPLED = 0.01


async def observed(bench: Bench) -> Result:
    """Workflows of ten steps with metrics, with one trace in a hundred recorded, and with neither, in turns."""
    sizes = bench.sizes
    runs = max(1, sizes.runs // 5)
    measured: dict[str, list[float]] = {}
    async with contextlib.AsyncExitStack() as stack:
        engines = {name: await stack.enter_async_context(_engine(bench, name)) for name in KINDS}
        for number in range(sizes.rounds):
            bench.raw.sample()
            spent: dict[str, Spent] = {}
            # Each comes first now and then, as the tables grow.
            for name in KINDS[number % len(KINDS) :] + KINDS[: number % len(KINDS)]:
                spent[name] = await work_off(engines[name], [steps(10)] * runs, runs * 10, sizes.slots)
            for name, one in spent.items():
                measured.setdefault(f"{name}_steps_per_s", []).append(runs * 10 / one.wall)
                measured.setdefault(f"{name}_cpu_us_per_step", []).append(one.cpu / runs / 10 * 1e6)
            for name in KINDS[1:]:
                # Of the same round, so that a busy machine was as busy for both.
                ratio = 2 * spent[name].cpu / (spent["alone"].cpu + spent["again"].cpu)
                measured.setdefault(f"cpu_ratio_{name}", []).append(ratio)
    figures = {name: (min if "cpu_us" in name else median)(values) for name, values in measured.items()}
    for name in KINDS[1:]:
        ratios = measured[f"cpu_ratio_{name}"]
        figures[f"cpu_ratio_{name}_least"], figures[f"cpu_ratio_{name}_most"] = min(ratios), max(ratios)
    return bench.result(runs=runs, steps=runs * 10, **figures)


def _engine(bench: Bench, name: str) -> Engine:
    if name == "traces":
        # Imported late: the other workloads need neither package.
        from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
        from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

        from perdure.tracing import Tracing

        provider = TracerProvider(ParentBased(TraceIdRatioBased(SAMPLED)))
        # A program exports in another thread.
        provider.add_span_processor(SpanProcessor())
        return Engine(bench.url, ALL, tracing=Tracing(provider))
    engine = Engine(bench.url, ALL)
    if name == "metrics":
        from perdure.metrics import Metrics

        Metrics(engine)
    return engine
