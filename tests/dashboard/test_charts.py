"""Charts of the overview: parts that are read once, for all viewers, within the budget of live updates."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from perdure import Context, Fatal, workflow
from perdure.dashboard.charts import RANGES, SAMPLE, Charts
from perdure.host import Host
from perdure.http.live import StatementBudget
from tests.dashboard.shop import browsing
from tests.helpers import eventually
from tests.stage import Stage

pytestmark = pytest.mark.every_database


@workflow("charts.v1")
async def charted(ctx: Context, fails: bool = False) -> None:
    if fails:
        raise Fatal("as asked")


def free() -> StatementBudget:
    """A budget on a clock that runs a thousand times as fast, so that no test waits for it."""

    class Fast(Host):
        def monotonic(self) -> float:
            return Host.monotonic() * 1000

        async def sleep(self, seconds: float) -> None:
            await asyncio.sleep(seconds / 1000)

    return StatementBudget(cast("Any", Fast()))


async def fill(charts: Charts, name: str) -> Any:
    async def complete() -> Any:
        found = await charts.read(name)
        return found if found.complete else None

    await eventually(complete)
    return await charts.read(name)


async def test_a_chart_has_the_rates_and_durations_of_runs_that_ended(stage: Stage) -> None:
    async with stage.engine(charted) as engine, engine.worker():
        runs = await engine.start_many([charted(fails=number < 3) for number in range(10)])
        for run in runs:
            await eventually(_ended(run))
        charts = Charts(engine, free())
        for name, chosen in RANGES.items():
            found = await fill(charts, name)
            assert (len(found.times), found.range) == (chosen.parts, name)
            assert sum(one or 0 for one in found.ended) > 0
            ratio = sum(one or 0 for one in found.failed) / sum(one or 0 for one in found.ended)
            # The part that is under way is read again, so both were read at the same time.
            assert ratio == pytest.approx(0.3, rel=0.01)
            slowest, usual = max(one or 0 for one in found.p99), max(one or 0 for one in found.p50)
            assert slowest >= usual > 0
        await charts.close()


def _ended(run: Any) -> Any:
    async def check() -> bool:
        return bool((await run.info()).status.finished)

    return check


async def test_parts_that_are_over_are_read_once(on_disk: Stage) -> None:
    async with on_disk.engine(charted) as engine:
        await engine.open()
        store: Any = on_disk.store
        reads: list[Any] = []
        listed = store.run_times

        async def counted(*args: Any) -> Any:
            reads.append(args)
            return await listed(*args)

        store.run_times = counted
        charts = Charts(engine, free())
        await asyncio.gather(*(charts.read("1h") for _ in range(20)))
        await fill(charts, "1h")
        # A part may have begun meanwhile.
        assert len(reads) <= RANGES["1h"].parts + 1
        # The newest first.
        assert reads[0][0] > reads[1][0]
        assert all(limit == SAMPLE for _, _, limit in reads)
        await charts.close()


async def test_the_rate_of_a_part_with_many_runs_is_that_of_the_latest(on_disk: Stage) -> None:
    async with on_disk.engine(charted) as engine:
        await engine.start_many([charted() for _ in range(SAMPLE + 50)])
        charts = Charts(engine, free())
        found = await fill(charts, "7d")
        # None has ended.
        assert set(found.ended) == {0.0}
        await charts.close()


async def test_a_chart_is_one_of_the_ranges(on_disk: Stage) -> None:
    async with on_disk.engine(charted) as engine, browsing(engine, role="viewer") as client:
        answer = await client.get("/charts?range=1h")
        assert (answer.status_code, answer.json()["range"]) == (200, "1h")
        assert (await client.get("/charts?range=1y")).status_code == 422
        assert 'aria-current="true">24h' in (await client.get("/?range=24h")).text
    async with on_disk.engine(charted) as engine, browsing(engine, role=None) as client:
        assert (await client.get("/charts?range=1h")).status_code == 303
