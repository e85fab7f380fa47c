"""The work that `benchmarks.check` counts: workflows on SQLite in one process, without threads, clocks or chance.

    python -m benchmarks.counted FOLDER [--opcodes [RUNS]] [--metrics] [--traces]

The clock moves by a microsecond a look, randomness grows from a seed and the database works on the thread of the
caller, so that the same code does the same work each time. Before and after each part the process calls `getsid`, which
nothing else here does: callgrind writes its counts down there. What is printed is a JSON object: CPU seconds by part
or, with `--opcodes`, executed bytecodes by function. With `--metrics`, all of it is counted by an engine that has
metrics. With `--traces`, the engine makes spans, of one trace in 100.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

from benchmarks.bench import work_off
from benchmarks.programs import steps
from perdure import Engine
from perdure.store import Retrying, open_store
from perdure.testing.clock import VirtualClock

#: Runs of each part; and with metrics or traces, so that one trace in a hundred is a whole number of them.
RUNS = 150
TRACED_RUNS = 200
#: Steps of each run, by part: a run of one step, and how much more the same runs cost with ten more steps each.
PARTS = {"short": 1, "long": 11}
#: Runs before the first part, of each kind: caches are filled, and bytecode is specialised.
WARM_UP = 20


class Ticking(VirtualClock):
    """A clock that moves by a microsecond whenever it is looked at: one that stands makes a store look twice."""

    def now(self) -> int:
        """Virtual microseconds since the epoch."""
        self._now += 1
        return self._now


async def work(
    folder: Path, part: Callable[[str], Any], runs: int = RUNS, *, metrics: bool = False, traces: bool = False
) -> None:
    """Do the work; `part(name)` is entered around each part."""
    system = Ticking(datetime(2026, 1, 1, tzinfo=UTC))
    store = open_store(f"sqlite:///{folder / 'counted.db'}", system, inline=True)
    options = {"tracing": sampled_traces()} if traces else {}
    async with Engine("sqlite://", [steps], system=system, store=Retrying(store, system), **options) as engine:
        if metrics:
            from perdure.metrics import Metrics

            Metrics(engine)
        for count in PARTS.values():
            await work_off(engine, [steps(count)] * WARM_UP, WARM_UP * count, slots=500)
        gc.collect()
        gc.freeze()
        # What the collector costs depends on all that is alive in the process, and not on the work.
        gc.disable()
        for name, count in PARTS.items():
            with part(name):
                await work_off(engine, [steps(count)] * runs, runs * count, slots=500)
        await store.close()


def sampled_traces() -> Any:
    """Tracing that records one trace in 100."""
    # Imported late: a revision that is compared with may have no traces.
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
    from opentelemetry.sdk.trace.sampling import Decision, ParentBased, Sampler, SamplingResult

    from perdure.tracing import Tracing

    class EveryHundredth(Sampler):
        """Records two traces of each part; by chance it could be none, or many more."""

        def __init__(self) -> None:
            self._decided: dict[int, Decision] = {}

        def should_sample(
            self, parent_context: Any, trace_id: int, name: str, kind: Any = None, attributes: Any = None,
            links: Any = None, trace_state: Any = None,
        ) -> SamplingResult:  # fmt: skip
            """Decide, the same for all spans of a trace."""
            recorded = Decision.DROP if len(self._decided) % 100 else Decision.RECORD_AND_SAMPLE
            return SamplingResult(self._decided.setdefault(trace_id, recorded), attributes)

        def get_description(self) -> str:
            """Name it."""
            return "EveryHundredth"

    provider = TracerProvider(ParentBased(EveryHundredth()))
    # A program exports in another thread.
    provider.add_span_processor(SpanProcessor())
    return Tracing(provider)


class Cpu:
    """CPU time by part, with a sign for callgrind at both ends."""

    def __init__(self) -> None:
        self.found: dict[str, float] = {}
        self._name = ""
        self._began = 0.0

    def __call__(self, name: str) -> Cpu:
        self._name = name
        return self

    def __enter__(self) -> None:
        os.getsid(0)
        self._began = time.process_time()

    def __exit__(self, *_: object) -> None:
        self.found[self._name] = time.process_time() - self._began
        os.getsid(0)


class Opcodes:
    """Executed bytecodes by part and function."""

    def __init__(self) -> None:
        self.found: dict[str, dict[str, int]] = {}
        self._count: Counter[Any] = Counter()

    def __call__(self, name: str) -> Opcodes:
        self._count = Counter()
        self.found[name] = {}
        return self

    def __enter__(self) -> None:
        sys.settrace(self._trace)

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)
        functions = self.found[list(self.found)[-1]]
        for code, count in self._count.items():
            name = f"{_shortened(code.co_filename)}:{code.co_qualname}"
            functions[name] = functions.get(name, 0) + count

    def _trace(self, frame: FrameType, event: str, _: object) -> Any:
        if event == "call":
            frame.f_trace_lines = False
            frame.f_trace_opcodes = True
        elif event == "opcode":
            self._count[frame.f_code] += 1
        return self._trace


def _shortened(path: str) -> str:
    """A path without what differs from machine to machine."""
    parts = Path(path).parts
    for root in ("perdure", "benchmarks", "site-packages"):
        if root in parts:
            at = len(parts) - parts[::-1].index(root)
            return "/".join(parts[at if root == "site-packages" else at - 1 :])
    return "/".join(parts[-2:])


def main() -> None:
    """See the module."""
    part = Opcodes() if "--opcodes" in sys.argv else Cpu()
    runs = [int(one) for one in sys.argv[2:] if one.isdecimal()]
    asyncio.run(work(Path(sys.argv[1]), part, *runs, metrics="--metrics" in sys.argv, traces="--traces" in sys.argv))
    print(json.dumps(part.found))


if __name__ == "__main__":
    main()
