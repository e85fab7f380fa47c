"""w6: taking up a run with a long history, from the claim to the first thing that is new."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.bench import Bench, Result, median, probing
from benchmarks.programs import ALL, resumed
from perdure import Engine
from perdure.core.model.claim import ClaimRequest, ClaimResult
from perdure.host import Host
from perdure.store import Store, open_store


class ClaimClock:
    """A store that remembers when the claim began that got something."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.claimed_at = 0.0
        self.cpu_at = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def claim(self, request: ClaimRequest) -> ClaimResult:
        begun, cpu = time.perf_counter(), time.process_time()
        claimed = await self._store.claim(request)
        if claimed.runs:
            self.claimed_at, self.cpu_at = begun, cpu
        return claimed


async def w6(bench: Bench) -> Result:
    """One history, taken up again and again by a new worker; each is stopped in the middle of the first new step."""
    records = bench.sizes.steps * 5
    system = Host()
    clock = ClaimClock(open_store(bench.url, system))
    times: list[float] = []
    cpus: list[float] = []
    async with Engine(bench.url, ALL, system=system, store=clock) as engine:
        await engine.start(resumed(records))
        await _until_gate(engine, expected=records + 1)
        for _ in range(bench.sizes.rounds):
            bench.raw.sample()
            reached, cpu = await _until_gate(engine, expected=1)
            times.append(reached - clock.claimed_at)
            cpus.append(cpu - clock.cpu_at)
    wall = median(times)
    return bench.result(
        runs=1,
        steps=records,
        p50_ms=wall * 1e3,
        p99_ms=max(times) * 1e3,
        records_per_s=records / wall,
        cpu_us_per_record=median(cpus) / records * 1e6,
    )


async def _until_gate(engine: Engine, expected: int) -> tuple[float, float]:
    """Work until the step that never ends has begun, then give the run back; when that was, on both clocks."""
    async with probing(expected) as probe:
        worker = engine.worker()
        await worker.start()
        await probe.reached.wait()
        cpu = time.process_time()
        await worker.stop(grace=0)
    return probe.times[-1], cpu
