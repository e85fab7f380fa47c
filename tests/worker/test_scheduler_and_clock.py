"""Schedules as a user has them, on a clock that the test moves."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest

from perdure import At, Context, Cron, Every, Retry, Status, UsageError, activity, fire_time_of, workflow
from perdure.admin import Schedule, Schedules
from perdure.errors import (
    EncodeError,
    InvalidDuration,
    InvalidName,
    InvalidSchedule,
    ScheduleExists,
    ScheduleNotFound,
    UnknownWorkflow,
)
from perdure.testing import Environment

START = datetime(2026, 1, 1, tzinfo=UTC)


@workflow("schedules.report.v1")
async def report(ctx: Context, minutes: int = 0) -> str:
    await ctx.sleep(minutes * 60)
    return ctx.run_id


@workflow("schedules.stranger.v1")
async def stranger(ctx: Context) -> None:
    """A workflow that no worker here serves."""


@pytest.fixture
async def env() -> AsyncIterator[Environment]:
    async with Environment([report], start_time=START) as env:
        yield env


def schedules(env: Environment) -> Schedules:
    return env.engine.schedules


async def slots(env: Environment, *statuses: Status) -> list[str]:
    """Fire times of the runs that schedules have started, oldest first."""
    page = await env.engine.runs.list(status=list(statuses) or None, limit=1000)
    return sorted(f"{slot:%d %H:%M}" for run in page.runs if (slot := fire_time_of(run.id)) is not None)


async def passed(env: Environment, id: str) -> list[str]:
    events = await schedules(env).events(id)
    return [event.data.partition('"reason":"')[2].rstrip('"}') for event in events if event.kind == "schedule_passed"]


def jump(env: Environment, duration: timedelta) -> None:
    """Let time pass while no worker runs."""
    env._clock.move_to(env._clock.now() + int(duration.total_seconds() * 1e6))


@pytest.mark.parametrize("replace", [False, True])
async def test_a_schedule_that_goes_while_another_one_finds_it_in_the_way_makes_room_for_that(
    env: Environment, monkeypatch: pytest.MonkeyPatch, replace: bool
) -> None:
    await schedules(env).create("nightly", report(), Every("1h"))
    store = await env.engine._session.connect()
    look = store.schedule

    async def look_too_late(id: str) -> Schedule | None:
        monkeypatch.undo()
        there = await look(id) if replace else None
        await store.delete_schedule(id, "operator")
        return there

    monkeypatch.setattr(store, "schedule", look_too_late)
    created = await schedules(env).create("nightly", report(), Cron("@daily"), replace=replace)
    assert (created.timing, created.version) == (Cron("@daily"), 1)


async def test_a_cron_expression_runs_in_its_time_zone(env: Environment) -> None:
    created = await schedules(env).create("nightly", report(), Cron("30 2 * * *", "Europe/Prague"))
    assert created.last_run == ""
    assert [str(moment) for moment in await schedules(env).next("nightly", 2)] == [
        "2026-01-01 02:30:00+01:00",
        "2026-01-02 02:30:00+01:00",
    ]
    await env.advance("3d")
    assert await slots(env, Status.COMPLETED) == ["01 01:30", "02 01:30", "03 01:30"]
    assert (await schedules(env).get("nightly")).last_run == "nightly@2026-01-03T01:30:00Z"


async def test_an_interval_runs_from_its_creation_on(env: Environment) -> None:
    await schedules(env).create("often", report(), Every("20m"))
    await env.advance("1h")
    assert await slots(env) == ["01 00:20", "01 00:40", "01 01:00"]


async def test_an_interval_with_a_beginning_keeps_to_it(env: Environment) -> None:
    await schedules(env).create("often", report(), Every("20m", start=START - timedelta(minutes=5)))
    await env.advance("1h")
    assert await slots(env) == ["01 00:15", "01 00:35", "01 00:55"]


async def test_a_moment_comes_once(env: Environment) -> None:
    await schedules(env).create("once", report(), At(START + timedelta(hours=1)))
    await env.advance("2d")
    assert await slots(env) == ["01 01:00"]
    assert await schedules(env).next("once") == []


async def test_jitter_delays_a_slot_and_does_not_rename_it(env: Environment) -> None:
    await schedules(env).create("spread", report(), Every("1h"), jitter="10m")
    await env.advance("1h")
    assert await slots(env) == []
    await env.advance("10m")
    assert await slots(env) == ["01 01:00"]
    [run] = (await env.engine.runs.list()).runs
    assert run.created_at > (START + timedelta(hours=1)).timestamp() * 1e6


@pytest.mark.parametrize(
    ("misfire", "made_up_for"),
    [
        ("skip", []),
        ("once", ["01 05:00"]),
        (2, ["01 04:00", "01 05:00"]),
        ("all", [f"01 0{n}:00" for n in range(1, 6)]),
    ],
)
async def test_slots_that_no_worker_was_there_for(env: Environment, misfire: Any, made_up_for: list[str]) -> None:
    await schedules(env).create("hourly", report(), Cron("@hourly"), misfire=misfire, overlap="allow")
    jump(env, timedelta(hours=5, minutes=30))
    await env.settle()
    assert await slots(env) == made_up_for
    assert await passed(env, "hourly") == ([] if misfire == "all" else ["missed"])
    await env.advance("30m")
    assert await slots(env) == [*made_up_for, "01 06:00"]


async def test_while_a_run_goes_on_slots_are_skipped(env: Environment) -> None:
    await schedules(env).create("slow", report(150), Every("1h"))
    await env.advance("4h")
    assert await slots(env) == ["01 01:00", "01 04:00"]
    assert await passed(env, "slow") == ["overlap", "overlap"]


async def test_runs_may_overlap(env: Environment) -> None:
    await schedules(env).create("slow", report(150), Every("1h"), overlap="allow")
    await env.advance("4h")
    assert await slots(env, Status.WAITING) == ["01 02:00", "01 03:00", "01 04:00"]


async def test_slots_wait_for_the_run_before_them(env: Environment) -> None:
    await schedules(env).create("slow", report(90), Every("1h"), overlap="queue")
    await env.advance("245m")
    assert await slots(env, Status.WAITING) == ["01 03:00"]
    assert (await schedules(env).get("slow")).waiting == tuple(
        int((START + timedelta(hours=hour)).timestamp() * 1e6) for hour in (4,)
    )
    await schedules(env).pause("slow")
    await env.advance("1d")
    assert await slots(env, Status.COMPLETED) == ["01 01:00", "01 02:00", "01 03:00"]
    await schedules(env).resume("slow")
    await env.advance("10s")
    assert await slots(env, Status.WAITING) == ["01 04:00"]


async def test_the_run_before_is_cancelled(env: Environment) -> None:
    await schedules(env).create("slow", report(150), Every("1h"), overlap="cancel")
    await env.advance("3h")
    await env.advance("10s")
    assert await slots(env, Status.CANCELLED) == ["01 01:00", "01 02:00"]
    assert await slots(env, Status.WAITING) == ["01 03:00"]


async def test_slots_of_a_pause_are_passed_over_or_made_up_for(env: Environment) -> None:
    await schedules(env).create("hourly", report(), Cron("@hourly"), misfire="all", overlap="allow")
    assert await schedules(env).pause("hourly", "holidays")
    assert not await schedules(env).pause("hourly")
    assert (await schedules(env).get("hourly")).reason == "holidays"
    await env.advance("150m")
    assert await schedules(env).resume("hourly")
    assert not await schedules(env).resume("hourly")
    await env.advance("30m")
    assert await slots(env) == ["01 03:00"]
    await schedules(env).pause("hourly")
    await env.advance("150m")
    assert await schedules(env).resume("hourly", catch_up=True)
    await env.settle()
    assert await slots(env) == ["01 03:00", "01 04:00", "01 05:00"]
    kinds = [event.kind for event in await schedules(env).events("hourly")]
    assert kinds[:3] == ["schedule_created", "schedule_paused", "schedule_resumed"]


async def test_a_change_is_felt_at_the_next_slot(env: Environment) -> None:
    await schedules(env).create("job", report(), Every("1h"), queue="elsewhere", misfire=2, deadline="5h")
    changed = await schedules(env).change("job", call=report(5), timing=Cron("30 * * * *"), priority=7, jitter="0s")
    assert (changed.input, changed.queue, changed.priority) == ('{"minutes":5}', "default", 7)
    assert (changed.misfire.limit, changed.deadline) == (2, 5 * 3600 * 1_000_000)
    changed = await schedules(env).change("job", queue="reports", overlap="allow", deadline=None, misfire="all")
    assert (changed.queue, changed.priority, changed.overlap, changed.deadline) == ("reports", 7, "allow", 0)
    assert changed.misfire.limit is None
    await env.advance("1h")
    assert await slots(env) == ["01 00:30"]


async def test_the_same_again_is_no_change(env: Environment) -> None:
    first = await schedules(env).create("job", report(1), Every("1h"), jitter="1m")
    await env.advance("10m")
    assert await schedules(env).create("job", report(1), Every("1h"), jitter="1m") == first
    with pytest.raises(ScheduleExists, match="'job'"):
        await schedules(env).create("job", report(2), Every("1h"), jitter="1m")
    with pytest.raises(ScheduleExists, match="'job'"):
        await schedules(env).create("job", report(1), Every("1h", start=START), jitter="1m")
    replaced = await schedules(env).create("job", report(2), Every("2h"), replace=True)
    assert replaced.input == '{"minutes":2}'
    assert isinstance(replaced.timing, Every)
    assert replaced.timing.interval == timedelta(hours=2)


async def test_a_run_can_be_started_by_hand(env: Environment) -> None:
    await schedules(env).create("nightly", report(), Cron("@daily"))
    await schedules(env).pause("nightly")
    run = await schedules(env).trigger("nightly")
    assert await run.result() == run.id
    assert run.id.startswith("nightly@now-")
    events = [event.kind for event in await run.events()]
    assert events[:2] == ["created", "scheduled"]


async def test_a_range_of_slots_is_made_up_for_once(env: Environment) -> None:
    await schedules(env).create("nightly", report(), Cron("@daily"))
    await env.advance("36h")
    first = await schedules(env).backfill("nightly", START - timedelta(days=3), START + timedelta(days=1))
    assert first == [f"nightly@{day}T00:00:00Z" for day in ("2025-12-29", "2025-12-30", "2025-12-31", "2026-01-01")]
    assert await schedules(env).backfill("nightly", START, START + timedelta(days=2, hours=-20)) == [
        "nightly@2026-01-01T00:00:00Z",
        "nightly@2026-01-02T00:00:00Z",
    ]
    await env.settle()
    page = await env.engine.runs.list(status=Status.COMPLETED)
    assert len(page.runs) == 5
    with pytest.raises(UsageError, match="not beyond now"):
        await schedules(env).backfill("nightly", START, START + timedelta(days=9))
    with pytest.raises(UsageError, match="not beyond now"):
        await schedules(env).backfill("nightly", START, START - timedelta(days=9))
    await schedules(env).create("often", report(), Every("1s", start=START - timedelta(days=1)))
    with pytest.raises(UsageError, match="10000 fire times"):
        await schedules(env).backfill("often", START - timedelta(days=1), START)


async def test_a_type_that_no_worker_serves_is_fired_all_the_same(env: Environment) -> None:
    async with Environment([report, stranger], start_time=START) as other:
        await schedules(other).create("strange", stranger(), Every("1h"), queue="elsewhere")
        await other.advance("1h")
        [run] = (await other.engine.runs.list()).runs
        assert run.status is Status.PENDING
        assert "no live worker takes the queue 'elsewhere'" in await other.engine.runs.why(run.id)


async def test_an_activity_keeps_its_limits_and_its_settings(env: Environment) -> None:
    @activity("schedules.notify.v1", queue="mail", priority=5, schedule_to_start="10m", schedule_to_close="1h")
    async def notify() -> None: ...

    async with Environment([notify], start_time=START) as other:
        call = notify().options(retry=Retry(attempts=7))
        created = await schedules(other).create("mails", call, Every("1h"))
        assert (created.queue, created.priority, created.max_attempts) == ("mail", 5, 7)
        await other.advance("1h")
        [run] = (await other.engine.runs.list()).runs
        started = run.created_at
        assert (run.queue, run.max_attempts, run.deadline) == ("mail", 7, started + 10 * 60 * 1_000_000)
        assert "7" in run.options
        await other.advance("10m")
        [run] = (await other.engine.runs.list()).runs
        assert run.status is Status.FAILED
        changed = await schedules(other).change("mails", call=notify(), deadline="5m")
        assert (changed.deadline, changed.start_within, changed.max_attempts) == (5 * 60 * 1_000_000, 0, 0)


async def test_what_is_deleted_runs_no_more(env: Environment) -> None:
    await schedules(env).create("hourly", report(), Cron("@hourly"))
    await env.advance("1h")
    await schedules(env).delete("hourly")
    await env.advance("1d")
    assert await slots(env) == ["01 01:00"]
    assert await schedules(env).list() == []
    kinds = [event.kind for event in await schedules(env).events("hourly")]
    assert kinds == ["schedule_created", "schedule_fired", "schedule_deleted"]


async def test_schedules_are_listed_by_id_a_page_at_a_time(env: Environment) -> None:
    for id in ("c", "a", "b"):
        await schedules(env).create(id, report(), Cron("@daily"))
    assert [one.id for one in await schedules(env).list(limit=2)] == ["a", "b"]
    assert [one.id for one in await schedules(env).list(after="b")] == ["c"]
    with pytest.raises(UsageError, match="limit"):
        await schedules(env).list(limit=0)


async def test_a_schedule_that_is_not_there_is_not_found(env: Environment) -> None:
    for asking in (
        schedules(env).get("no"),
        schedules(env).change("no", jitter=1),
        schedules(env).pause("no"),
        schedules(env).resume("no"),
        schedules(env).delete("no"),
        schedules(env).trigger("no"),
        schedules(env).next("no"),
        schedules(env).backfill("no", START, START),
    ):
        with pytest.raises(ScheduleNotFound, match="'no'"):
            await asking


@pytest.mark.parametrize(
    ("make", "error", "named"),
    [
        (lambda: Cron("61 * * * *"), InvalidSchedule, "bad minute"),
        (lambda: Cron("* * *"), InvalidSchedule, "wrong number of fields"),
        (lambda: Cron("0 0 31 2 *"), InvalidSchedule, "day-of-month"),
        (lambda: Cron("@sometimes"), InvalidSchedule, "@daily"),
        (lambda: Cron("x" * 501), InvalidSchedule, "not a cron expression"),
        (lambda: Cron(17), InvalidSchedule, "^17 is not a cron expression"),  # type: ignore[arg-type] # on purpose
        (lambda: Cron("@daily", "Mars/Olympus"), InvalidSchedule, "'Mars/Olympus'"),
        (lambda: Cron("@daily", "../../etc/passwd"), InvalidSchedule, "no time zone"),
        (lambda: Every("0s"), InvalidSchedule, "too short"),
        (lambda: Every("soon"), InvalidSchedule, "'soon' is not a duration"),
        (lambda: Every("1h", start=datetime(2026, 1, 1)), InvalidSchedule, "time zone"),
        (lambda: At(datetime(2026, 1, 1)), InvalidSchedule, "time zone"),
        (lambda: At(datetime(1969, 7, 20, tzinfo=UTC)), InvalidDuration, "before 1970"),
        (lambda: At("tomorrow"), InvalidSchedule, "'tomorrow'"),  # type: ignore[arg-type] # on purpose
    ],
)
def test_a_timing_that_is_none_is_refused_by_name(make: Any, error: type[Exception], named: str) -> None:
    with pytest.raises(error, match=named):
        make()


@pytest.mark.parametrize(
    ("arguments", "options", "error", "named"),
    [
        (("a/b", report(), Cron("@daily")), {}, InvalidName, "a/b"),
        (("a", report(), "@daily"), {}, InvalidSchedule, "does not say when"),
        (("a", report(), At(START - timedelta(hours=1))), {}, InvalidSchedule, "never run"),
        (("a", stranger(), Cron("@daily")), {}, UnknownWorkflow, "schedules.stranger.v1"),
        (("a", report, Cron("@daily")), {}, UsageError, "takes a call"),
        (("a", report(object()), Cron("@daily")), {}, EncodeError, "minutes"),  # type: ignore[arg-type] # on purpose
        (("a", report(), Cron("@daily")), {"overlap": "maybe"}, InvalidSchedule, "overlap='maybe'"),
        (("a", report(), Cron("@daily")), {"misfire": "maybe"}, InvalidSchedule, "misfire='maybe'"),
        (("a", report(), Cron("@daily")), {"jitter": -1}, InvalidDuration, "negative"),
        (("a", report(), Cron("@daily")), {"queue": "a/b"}, InvalidName, "queue"),
        (("a", report(), Cron("@daily")), {"priority": 2**40}, UsageError, "priority"),
        (("a", report(), Cron("@daily")), {"color": "red"}, InvalidSchedule, "'color'"),
    ],
)
async def test_what_cannot_be_is_refused_before_anything_is_written(
    env: Environment, arguments: Any, options: Any, error: type[Exception], named: str
) -> None:
    with pytest.raises(error, match=named):
        await schedules(env).create(*arguments, **options)
    assert await schedules(env).list() == []


async def test_a_schedule_fires_from_its_start_until_before_its_end(env: Environment) -> None:
    made = await schedules(env).create(
        "s", report(), Every("1h"), starts=START + timedelta(hours=3), ends=START + timedelta(hours=6), overlap="allow"
    )
    assert made.next_fire_time == int((START + timedelta(hours=3)).timestamp() * 1e6)
    await env.advance("12h")
    assert await slots(env) == ["01 03:00", "01 04:00", "01 05:00"]
    assert await schedules(env).next("s") == []
    await schedules(env).change("s", ends=None)
    await env.advance("2h")
    assert (await slots(env))[3:] == ["01 13:00", "01 14:00"]


async def test_no_run_is_started_on_a_skipped_date_of_the_schedule_s_zone(env: Environment) -> None:
    holidays: list[date | str] = [date(2026, 1, 3), "2026-01-05"]
    timing = Cron("30 0 * * *", zone="Asia/Tokyo")
    made = await schedules(env).create("s", report(), timing, skip=holidays)
    assert await schedules(env).create("s", report(), timing, skip=holidays[::-1]) == made
    assert (made.window.skip, made.timing) == ((date(2026, 1, 3), date(2026, 1, 5)), timing)
    await env.advance("6d")
    # Half past midnight in Tokyo is 15:30 of the day before in UTC.
    assert await slots(env) == ["01 15:30", "03 15:30", "05 15:30", "06 15:30"]
    missing = await schedules(env).preview_backfill("s", START, env.now)
    assert (missing.fire_times, missing.missing) == (4, 0)


async def test_a_date_that_is_no_longer_skipped_fires_and_a_missed_one_stays_missed(env: Environment) -> None:
    await schedules(env).create("s", report(), Cron("0 12 * * *"), skip=["2026-01-01"], misfire="all")
    assert [time.day for time in await schedules(env).next("s", 1)] == [2]
    await schedules(env).change("s", skip=[])
    await env.advance("13h")
    assert await slots(env) == ["01 12:00"]
    await schedules(env).change("s", skip=["2026-01-02"])
    await env.advance("2d")
    assert await slots(env) == ["01 12:00", "03 12:00"]


async def test_another_timing_keeps_the_window(env: Environment) -> None:
    await schedules(env).create("s", report(), Cron("@daily"), skip=["2026-01-02"], ends=START + timedelta(days=9))
    changed = await schedules(env).change("s", timing=Every("12h"))
    assert (changed.window.skip, changed.window.ends) == ((date(2026, 1, 2),), START + timedelta(days=9))
    assert [f"{time:%d %H}" for time in await schedules(env).next("s", 3)] == ["01 12", "03 00", "03 12"]


async def test_an_interval_created_again_with_its_window_is_the_same(env: Environment) -> None:
    made = await schedules(env).create("s", report(), Every("1h"), skip=["2026-01-02"])
    await env.advance("90m")
    again = await schedules(env).create("s", report(), Every("1h"), skip=["2026-01-02"])
    assert again.spec == made.spec
    with pytest.raises(ScheduleExists):
        await schedules(env).create("s", report(), Every("1h"))
    with pytest.raises(ScheduleExists):
        await schedules(env).create("s", report(), Every("1h"), skip=["2026-01-02"], starts=START)


async def test_a_time_without_a_zone_is_in_that_of_the_schedule(env: Environment) -> None:
    made = await schedules(env).create(
        "s",
        report(),
        Cron("@hourly", zone="Asia/Tokyo"),
        starts=datetime(2026, 1, 2, 9),
    )
    assert made.window.starts == datetime(2026, 1, 2, tzinfo=UTC)


@pytest.mark.parametrize(
    "options",
    [
        {"starts": START, "ends": START},
        {"starts": "tomorrow"},
        {"ends": START - timedelta(days=1)},
        {"skip": "2026-01-01"},
        {"skip": ["someday"]},
        {"skip": [START]},
        {"skip": [date(1, 1, 1)]},
        {"skip": [START.date() + timedelta(days=number) for number in range(4001)]},
        {"skip": 3},
    ],
)
async def test_a_window_that_makes_no_sense_is_refused(env: Environment, options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        await schedules(env).create("s", report(), Cron("@daily"), **options)
    assert await schedules(env).list() == []


async def test_runs_of_a_schedule_are_listed_in_its_own_zone(env: Environment) -> None:
    await schedules(env).create("s", report(), Cron("30 2 * * *", zone="Europe/Prague"), overlap="allow")
    await schedules(env).create("s2", report(), Every("1d"))
    await env.advance("1d")
    by_hand = await schedules(env).trigger("s")
    await by_hand.result()
    newest, first = await schedules(env).runs("s")
    assert (newest.run_id, newest.fire_time, newest.status) == (by_hand.id, None, Status.COMPLETED)
    assert str(first.fire_time) == "2026-01-01 02:30:00+01:00"
    assert first.run_id == "s@2026-01-01T01:30:00Z"
    assert {str(time)[-6:] for time in (first.created_at, first.started_at, first.finished_at)} == {"+01:00"}
    assert [one.run_id for one in await schedules(env).runs("s", limit=1)] == [by_hand.id]
    with pytest.raises(ScheduleNotFound):
        await schedules(env).runs("none")
