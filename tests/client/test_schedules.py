"""Schedules on real clocks and real databases."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from perdure import Context, Cron, Every, Status, fire_time_of, workflow
from perdure.core.time.cron import fire_times
from perdure.core.time.duration import moment_of
from perdure.errors import ScheduleExists, ScheduleNotFound
from tests.helpers import eventually
from tests.stage import Stage


@workflow("engine.tick.v1")
async def tick(ctx: Context, number: int) -> str:
    return f"{number} {ctx.run_id}"


async def test_a_schedule_runs_until_it_is_paused_and_each_slot_once(stage: Stage) -> None:
    engine = stage.engine(tick)
    async with engine.worker():
        await engine.schedules.create("often", tick(7), Every("100ms"), overlap="allow", misfire="all")

        async def has_run() -> bool:
            return len((await engine.runs.list(status=Status.COMPLETED)).runs) >= 3

        await eventually(has_run)
        assert await engine.schedules.pause("often", "enough")
        fired = [event.data for event in await engine.schedules.events("often") if event.kind == "schedule_fired"]
        runs = (await engine.runs.list(limit=1000)).runs
        assert len(fired) == len(set(fired)) == len(runs)
        slots = sorted(slot for run in runs if (slot := fire_time_of(run.id)) is not None)
        assert {after - before for before, after in pairwise(slots)} == {timedelta(milliseconds=100)}


async def test_two_workers_start_each_fire_time_before_the_end_of_a_schedule_once(stage: Stage) -> None:
    engine = stage.engine(tick)
    async with engine.worker(), engine.worker():
        start = datetime.now(UTC) + timedelta(seconds=2)
        ends, tomorrow = start + timedelta(milliseconds=950), start.date() + timedelta(days=1)
        made = await engine.schedules.create(
            "short", tick(7), Every("100ms"), starts=start, ends=ends, skip=[tomorrow],
            jitter="50ms", overlap="allow", misfire="all",
        )  # fmt: skip
        times = [moment_of(time) for time in fire_times(made.window, made.next_fire_time - 1)]
        assert made.timing == Every("100ms", start)

        async def has_ended() -> bool:
            completed = (await engine.runs.list(status=Status.COMPLETED)).runs
            return len(completed) >= len(times) and await engine.schedules.next("short") == []

        await eventually(has_ended)
        assert sorted(run.fire_time or ends for run in await engine.schedules.runs("short")) == times
        assert (await engine.schedules.get("short")).window.skip == (tomorrow,)


async def test_two_who_create_and_change_one_at_once_are_one_after_the_other(stage: Stage) -> None:
    engine = stage.engine(tick)
    timing = Cron("@daily", "Europe/Prague")
    created = await asyncio.gather(*(engine.schedules.create("nightly", tick(1), timing) for _ in range(5)))
    assert len(set(created)) == 1
    assert created[0].version == 1
    # Each sets something else, and finds what the others have set.
    await asyncio.gather(
        engine.schedules.change("nightly", jitter="1m"),
        engine.schedules.change("nightly", overlap="queue"),
        engine.schedules.change("nightly", queue="nights"),
        engine.schedules.pause("nightly"),
        engine.schedules.trigger("nightly"),
    )
    there = await engine.schedules.get("nightly")
    assert (there.jitter, there.overlap, there.queue, there.paused) == (60_000_000, "queue", "nights", True)
    assert there.version == 6
    assert there.last_run.startswith("nightly@now-")


async def test_what_was_missed_while_no_worker_lived_is_made_up_for(stage: Stage) -> None:
    engine = stage.engine(tick)
    yesterday = datetime.now(UTC) - timedelta(days=1)
    await engine.schedules.create("hourly", tick(2), Every("1h", start=yesterday))
    runs = await engine.schedules.backfill("hourly", yesterday, yesterday + timedelta(hours=3))
    async with engine.worker():
        results = [await (await engine.get(run, tick)).result() for run in runs]
    assert results == [f"2 {run}" for run in runs]
    assert [fire_time_of(run) for run in runs] == [yesterday + timedelta(hours=hour) for hour in range(3)]


def test_schedules_without_async() -> None:
    engine = Stage(None).engine(tick)
    with engine.blocking() as blocking:
        schedules = blocking.schedules
        now = datetime.now(UTC)
        made = schedules.create("nightly", tick(3), Cron("@daily"), misfire="skip")
        assert schedules.create("nightly", tick(3), Cron("@daily"), misfire="skip") == made
        with pytest.raises(ScheduleExists):
            schedules.create("nightly", tick(4), Cron("@daily"))
        assert schedules.change("nightly", priority=3).priority == 3
        assert schedules.create("nightly", tick(4), Cron("@hourly"), replace=True).input == '{"number":4}'
        assert [one.id for one in schedules.list()] == ["nightly"]
        assert len(schedules.next("nightly", 3)) == 3
        assert schedules.pause("nightly")
        assert schedules.resume("nightly")
        assert schedules.get("nightly").paused is False
        assert len(schedules.backfill("nightly", now - timedelta(hours=2), now)) == 2
        with blocking.worker():
            run = schedules.trigger("nightly")
            assert run.result(timeout=30) == f"4 {run.id}"
        assert len(schedules.events("nightly")) == 8
        schedules.delete("nightly")
        with pytest.raises(ScheduleNotFound):
            schedules.get("nightly")
