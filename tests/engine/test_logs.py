from __future__ import annotations

import logging
from typing import Any

import pytest

from perdure import Context, Retry, Status, activity, workflow
from tests.engine.stage import Stage, until

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
