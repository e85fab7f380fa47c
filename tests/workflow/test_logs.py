from __future__ import annotations

import logging
from typing import Any

import pytest

from perdure import Context, Retry, RunFailed, Status, activity, workflow
from tests.stage import Stage, until

TWICE = Retry(attempts=2, initial=0.01, jitter=0)
FIELDS = ("run_id", "run_type", "scope", "step", "attempt", "retry_count", "status", "error")


async def fail() -> None:
    raise ValueError("no")


async def fine() -> int:
    return 1


@workflow("log.mixed.v1")
async def mixed(ctx: Context) -> None:
    await ctx.step(fine)
    await ctx.options(retry=TWICE).step(fail)


@activity("log.activity.v1")
async def done() -> int:
    return 1


def told(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [vars(record) for record in caplog.records if record.name == "perdure.execution"]


async def test_steps_activities_and_runs_are_logged_with_their_fields(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "perdure.execution")
    engine = stage.engine(mixed, done)
    async with engine.worker():
        run = await engine.start(mixed())
        await until(run, Status.FAILED)
        other = await engine.start(done())
        assert await other.result("20s") == 1
    records = told(caplog)
    assert [tuple(record[field] for field in FIELDS) for record in records] == [
        (run.id, "log.mixed.v1", "step", "fine", 1, 0, "success", None),
        (run.id, "log.mixed.v1", "step", "fail", 1, 0, "retrying", "ValueError: no"),
        (run.id, "log.mixed.v1", "step", "fail", 2, 1, "failed", "ValueError: no"),
        (run.id, "log.mixed.v1", "run", None, 1, 0, "failed", "ValueError: no"),
        (other.id, "log.activity.v1", "activity", None, 1, 0, "success", None),
    ]
    assert all(record["duration"] >= 0 for record in records)
    assert records[1]["retry_at"] > 0
    assert [record["levelname"] for record in records] == ["DEBUG", "INFO", "INFO", "INFO", "DEBUG"]


async def test_what_succeeds_is_only_logged_for_those_who_want_to_know(
    on_disk: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "perdure.execution")
    engine = on_disk.engine(mixed, done)
    async with engine.worker():
        await (await engine.start(done())).result("20s")
        run = await engine.start(mixed())
        await until(run, Status.FAILED)
    assert [record["status"] for record in told(caplog)] == ["retrying", "failed", "failed"]
    assert f"step fail of run {run.id} (log.mixed.v1): retrying, attempt 1" in caplog.text


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "perdure.workflow"]


@workflow("log.first.v1", retry=Retry.fixed("1ms", attempts=2))
async def first_lines(ctx: Context) -> None:
    ctx.log.warning("before the first record")
    await ctx.receive("go")
    ctx.log.warning("after it")
    if await ctx.receive("fail", bool):
        raise ConnectionError
    await ctx.receive("end")


async def test_lines_before_the_first_record_are_said_once(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    engine = stage.engine(first_lines)
    run = await engine.start(first_lines())

    async def work() -> None:
        async with engine.worker():
            await until(run, Status.WAITING)

    await work()
    assert said(caplog) == ["before the first record"]
    # Nothing is recorded yet; each of these wakes the run in a worker that has not had it.
    for _ in range(2):
        await run.pause()
        await run.resume()
        await work()
    assert said(caplog) == ["before the first record"]
    await run.send("go")
    await work()
    assert said(caplog) == ["before the first record", "after it"]
    caplog.clear()
    # The next attempt at the run is another one, and speaks for itself.
    await run.send("fail", True)
    async with engine.worker():
        with pytest.raises(RunFailed):
            await run.result("60s")
    assert said(caplog) == ["before the first record", "after it"]
