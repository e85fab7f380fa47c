from __future__ import annotations

import asyncio
import datetime
import json
from typing import Any

import pytest

from perdure import Context, Engine, Retry, RunFailed, Status, UsageError, activity, activity_info, workflow
from perdure.admin import Event
from perdure.client import audit
from perdure.client.handle import Handle
from tests.helpers import eventually
from tests.stage import Stage, until

AT_ONCE = Retry(attempts=3, initial=0, jitter=0)


@workflow("audit.plain.v1")
async def plain(ctx: Context, number: int) -> int:
    return number


@activity("audit.late.v1", retry=Retry(attempts=2, initial=0, jitter=0), start_to_close="20ms")
async def late() -> None:
    await asyncio.Event().wait()


@activity("audit.chatty.v1")
async def chatty() -> None:
    activity_info().heartbeat({"page": 1})


@workflow("audit.family.v1")
async def family(ctx: Context) -> None:
    await ctx.call(late())


def kinds(events: list[Event]) -> list[str]:
    return [event.kind for event in events]


async def test_an_activity_that_is_too_slow_leaves_a_trail_of_what_was_tried(stage: Stage) -> None:
    engine = stage.engine(family, late)
    async with engine.worker():
        run = await engine.start(family())
        with pytest.raises(RunFailed):
            await run.result("20s")
        [child] = (await engine.runs.list(parent=run.id)).runs
    trail = await (await engine.get(child.id)).events()
    assert kinds(trail) == [
        "created", "started", "timed_out", "retried", "started", "timed_out", "failed",
    ]  # fmt: skip
    data = [json.loads(event.data) for event in trail]
    assert data[0] == {"type": "audit.late.v1", "parent": run.id}
    assert data[2] == {"timeout": "start_to_close"}
    assert (data[3]["attempt"], data[3]["error"]) == (2, "perdure.errors.ActivityTimeout")
    assert (data[4]["attempt"], trail[4].actor) == (2, trail[1].actor)
    assert data[6]["message"].startswith("activity")
    assert kinds(await run.events()) == ["created", "started", "failed"]


@workflow("audit.child.v1")
async def child(ctx: Context, *, fails: bool) -> int:
    if fails:
        raise ValueError("no")
    return 1


@workflow("audit.timers.v1")
async def timers(ctx: Context) -> str:
    await ctx.sleep(0.3)  # long enough to park
    await ctx.call(child(fails=False))
    try:
        await ctx.call(child(fails=True))
    except ValueError:
        pass
    ctx.log.info("waiting")
    return await ctx.receive("word", str, timeout="1h")


TRAIL_OF_TIMERS = [
    "timer_started sleep",
    "timer_fired sleep",
    "child_started audit.child.v1",
    "child_completed audit.child.v1",
    "child_started audit.child.v1#2",
    "child_failed audit.child.v1#2",
    "timer_started receive.timeout",
    "timer_cancelled receive.timeout",
]


def operations(events: list[Event]) -> list[str]:
    found = [(event, json.loads(event.data)) for event in events if event.kind.startswith(("timer_", "child_"))]
    return [f"{event.kind} {data.get('timer', data.get('child'))}" for event, data in found]


async def test_in_full_the_trail_has_timers_and_children(stage: Stage) -> None:
    engine = stage.engine(timers, child, audit="full")
    async with engine.worker():
        run = await engine.start(timers())
        await eventually(lambda: has_waited(run))
        await run.send("word", "done")
        assert await run.result("60s") == "done"
        trail = await run.events()
        assert operations(trail) == TRAIL_OF_TIMERS
        assert trail[-1].kind == "completed"
        data = {event.kind: json.loads(event.data) for event in trail}
        [_, failed] = sorted((await engine.runs.list(parent=run.id)).runs, key=lambda one: one.created_at)
        assert (data["child_failed"]["run"], data["child_failed"]["error"]) == (failed.id, "ValueError")
        assert data["child_started"]["type"] == "audit.child.v1"
        assert data["timer_started"]["until"] > trail[0].at


async def has_waited(run: Handle[Any]) -> bool:
    return "timer_started receive.timeout" in operations(await run.events())


async def test_a_run_that_goes_on_elsewhere_notes_each_timer_once(stage: Stage) -> None:
    engine = stage.engine(timers, child, audit="full")
    run = await engine.start(timers())
    async with engine.worker():
        await eventually(lambda: has_waited(run))
    async with engine.worker():
        await run.send("word", "done")
        await run.result("60s")
    assert operations(await run.events()) == TRAIL_OF_TIMERS


async def test_timers_and_children_are_left_out_at_the_usual_level(stage: Stage) -> None:
    engine = stage.engine(timers, child)
    async with engine.worker():
        run = await engine.start(timers())
        await run.send("word", "done")
        await run.result("60s")
    assert operations(await run.events()) == []


async def test_everything_that_happens_to_a_run_is_in_its_trail(stage: Stage) -> None:
    engine = stage.engine(plain)
    run = await engine.start(plain(1), at="1h")
    assert await run.pause("lunch")
    assert await run.resume()
    assert await run.cancel("enough")
    trail = await run.events()
    assert kinds(trail) == ["created", "paused", "resumed", "cancel_requested", "cancelled"]
    assert {event.actor for event in trail} == {engine._session.actor}
    assert json.loads(trail[1].data) == {"reason": "lunch"}
    with pytest.raises(UsageError):
        await run.retry(deadline=-1.0)
    assert await run.retry() == 2
    assert kinds(await run.events())[-1] == "reopened"


async def test_in_full_heartbeats_are_told_too(stage: Stage) -> None:
    engine = stage.engine(chatty, audit="full")
    async with engine.worker():
        run = await engine.start(chatty())
        await run.result("20s")
    trail = await run.events()
    assert kinds(trail) == ["created", "started", "heartbeat", "completed"]
    assert json.loads(trail[2].data) == {"details": {"page": 1}}


async def test_a_run_does_without_a_trail(stage: Stage) -> None:
    engine = stage.engine(family, late, audit="off")
    async with engine.worker():
        run = await engine.start(family())
        with pytest.raises(RunFailed):
            await run.result("20s")
    assert (await engine.audit.list()).events == ()
    copy = await run.fork()
    assert (await copy.report()).attempts == 1


async def test_events_are_listed_over_all_runs_a_page_at_a_time(stage: Stage) -> None:
    engine = stage.engine(plain, audit="lifecycle")
    runs = await engine.start_many([plain(number) for number in range(5)])
    async with engine.worker():
        for run in runs:
            await run.result("20s")
    page = await engine.audit.list(kind=["completed", "failed"], type="audit.plain.v1", limit=3)
    rest = await engine.audit.list(kind=["completed", "failed"], type="audit.plain.v1", limit=3, cursor=page.cursor)
    assert rest.cursor is None
    assert {event.run_id for event in (*page.events, *rest.events)} == {run.id for run in runs}
    assert len((await engine.audit.list(run=runs[0].id)).events) == 3
    now = datetime.datetime.now(datetime.UTC)
    hour = datetime.timedelta(hours=1)
    assert (await engine.audit.list(since=now + hour)).events == ()
    assert len((await engine.audit.list(since=now - hour, until=now + hour, kind="created")).events) == 5
    with pytest.raises(UsageError, match="limit must be"):
        await engine.audit.list(limit=0)


async def test_events_are_followed_as_they_come_also_the_late_ones(stage: Stage) -> None:
    engine = stage.engine(plain)
    first = await engine.start(plain(1))
    news = engine.audit.follow(kind="created")
    coming = asyncio.ensure_future(anext(news))
    await asyncio.sleep(0)
    assert not coming.done()

    async def seen() -> bool:
        await engine.start(plain(2))
        return coming.done()

    await eventually(seen, saying="an event being told")
    assert (await coming).run_id != first.id
    await news.aclose()
    everything = engine.audit.follow(after=0, run=first.id)
    assert (await anext(everything)).run_id == first.id
    await everything.aclose()


async def test_old_events_are_pruned_and_numbers_are_not_given_twice(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "CHUNK", 4)
    engine = stage.engine(plain)
    for number in range(10):
        await engine.start(plain(number))
    assert await engine.audit.prune("1h") == 0
    newest = (await engine.audit.list(limit=1)).events[0]
    assert await engine.audit.prune(0) == 9
    assert (await engine.audit.list(limit=4)).events == (newest,)
    run = await engine.start(plain(11))
    assert (await run.events())[0].id > newest.id
    assert len((await engine.runs.list()).runs) == 11


async def test_a_report_says_what_a_person_would_ask(stage: Stage) -> None:
    calls = attempts = 0

    async def flaky() -> str:
        nonlocal calls
        calls += 1
        if calls < 3:
            raise ValueError(f"no {calls}")
        return "yes"

    @workflow("audit.flaky.v1", retry=Retry(attempts=2, initial=0, jitter=0))
    async def flaking(ctx: Context) -> str:
        nonlocal attempts
        word = await ctx.options(retry=AT_ONCE).step(flaky)
        attempts += 1
        if attempts == 1:
            raise KeyError("again")
        return word

    engine = stage.engine(flaking)
    async with engine.worker():
        run = await engine.start(flaking())
        begun = await run.report()
        assert (begun.duration, begun.updated_at >= begun.run.created_at) == (0, True)
        assert await run.result("20s") == "yes"
    report = await run.report()
    assert (report.attempts, report.run.status) == (2, Status.COMPLETED)
    assert 0 < report.started_at < report.last_retry_at <= report.finished_at
    assert report.updated_at == report.finished_at
    assert report.duration == pytest.approx((report.finished_at - report.started_at) / 1e6)
    step = report.steps[0]
    assert (step.location, step.status, step.attempts, step.duration >= 0) == ("flaky", "completed", 3, True)
    assert [(error.attempt, error.message, error.retry_at > 0) for error in step.errors] == [
        (1, "no 1", True),
        (2, "no 2", True),
    ]
    assert step.last_error is step.errors[-1]
    assert [(error.location, error.error) for error in report.errors] == [
        ("flaky", "ValueError"),
        ("flaky", "ValueError"),
        ("", "KeyError"),
    ]
    assert report.last_error is not None
    assert report.last_error.attempt == 1


async def test_a_report_without_a_trail_knows_the_last_error(stage: Stage) -> None:
    async def fail() -> None:
        raise ValueError("no")

    @workflow("audit.failing.v1")
    async def failing(ctx: Context) -> None:
        await ctx.options(retry=Retry(attempts=1)).step(fail)

    engine = stage.engine(failing, audit="off")
    async with engine.worker():
        run = await engine.start(failing())
        await until(run, Status.FAILED)
    report = await run.report()
    assert [(error.location, error.message) for error in report.errors] == [("fail", "no"), ("", "no")]
    assert report.steps[0].status == "failed"


def test_blocking_code_looks_through_the_trail(on_disk: Stage) -> None:
    with on_disk.engine(plain).blocking() as engine:
        run = engine.start(plain(1))
        assert kinds(run.events()) == ["created"]
        assert run.report().attempts == 1
        [event] = engine.audit.list(kind="created").events
        assert event == next(engine.audit.follow(after=0))
        assert engine.audit.prune(0) == 0


def test_a_level_that_is_none_is_refused() -> None:
    with pytest.raises(UsageError, match="full, lifecycle, off"):
        Engine("sqlite://", audit="some")
    with pytest.raises(UsageError, match="audit"):
        Engine("sqlite://?audit=some")
    assert Engine("sqlite://?audit=off").audit.level == "off"
    assert Engine("sqlite://?audit=off", audit="full").audit.level == "full"
    assert Engine("postgresql://localhost/shop?audit=full").audit.level == "full"
    assert Engine("mysql://localhost/shop?audit=off").audit.level == "off"
