"""A workflow or an async step that blocks the event loop is in the log, with its stack; other work is not."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from typing import Any

import pytest

from perdure import Context, activity, workflow
from perdure.worker import loop_watch
from perdure.worker.loop_watch import Culprit
from tests.helpers import eventually
from tests.stage import Stage

#: Ten times the limit, so that a machine under load still takes samples meanwhile.
BLOCKED = 1.0


def reports(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [vars(record) for record in caplog.records if "was blocked for" in record.getMessage()]


def hog(seconds: float = BLOCKED) -> None:
    time.sleep(seconds)


async def test_a_workflow_that_blocks_the_loop_is_logged_with_its_stack(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    @workflow("blocks.workflow.v1")
    async def blocking(ctx: Context) -> None:
        hog()

    engine = stage.engine(blocking)
    async with engine.worker() as worker:
        await (await engine.start(blocking(), id="one")).result("60s")
        await eventually(lambda: len(reports(caplog)) == 1)
    [one] = reports(caplog)
    assert one["levelname"] == "WARNING"
    assert f"the event loop of worker {worker.id} was blocked for" in one["message"]
    assert "by the workflow of run one (blocks.workflow.v1)" in one["message"]
    assert (one["run_id"], one["run_type"], one["location"]) == ("one", "blocks.workflow.v1", None)
    lines = one["exc_text"].splitlines()
    assert lines[0] == "Stack (most recent call last):"
    # The user's frames and nothing else.
    assert [line.rpartition(" in ")[2] for line in lines if line.startswith("  File ")] == ["blocking", "hog"]
    assert "time.sleep(seconds)" in lines[-1]


@pytest.mark.parametrize("kind", ["step", "activity"])
async def test_an_async_step_that_blocks_the_loop_is_named(
    on_disk: Stage, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    async def charge() -> None:
        await asyncio.sleep(0)
        hog()

    @workflow("blocks.step.v1")
    async def stepping(ctx: Context) -> None:
        await ctx.step(charge)

    charging = activity("blocks.activity.v1")(charge)
    engine = on_disk.engine(stepping, charging)
    async with engine.worker():
        await (await engine.start(stepping() if kind == "step" else charging(), id="one")).result("60s")
        await eventually(lambda: len(reports(caplog)) == 1)
    [one] = reports(caplog)
    location = "charge" if kind == "step" else "blocks.activity.v1"
    assert f"by step {location} of run one, attempt 1" in one["message"]
    assert (one["run_id"], one["location"], one["attempt"]) == ("one", location, 1)
    assert one["exc_text"].count("  File ") == 2


async def test_a_loop_that_is_blocked_for_long_is_logged_before_it_is_free(
    on_disk: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    seen = False

    @workflow("blocks.long.v1")
    async def blocking(ctx: Context) -> None:
        nonlocal seen
        deadline = time.monotonic() + 60
        while not (seen := bool(reports(caplog))) and time.monotonic() < deadline:
            hog(0.01)

    engine = on_disk.engine(blocking)
    async with engine.worker(stall_limit="120s", lease="120s"):
        await (await engine.start(blocking())).result("90s")
    assert seen
    assert len(reports(caplog)) == 1


async def test_one_place_is_logged_once_and_the_rest_is_counted(
    on_disk: Stage, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_watch, "QUIET", 3.5 * BLOCKED)

    @workflow("blocks.often.v1")
    async def blocking(ctx: Context) -> None:
        hog()

    engine = on_disk.engine(blocking)
    async with engine.worker():
        for number in range(20):
            await (await engine.start(blocking(), id=f"run-{number}")).result("60s")
            if len(reports(caplog)) == 2:
                break
    first, second = reports(caplog)
    assert first["run_id"] == "run-0"
    assert "more times at this place since the last report)" in second["message"]


async def test_nothing_is_logged_where_it_is_switched_off(on_disk: Stage, caplog: pytest.LogCaptureFixture) -> None:
    @workflow("blocks.off.v1")
    async def blocking(ctx: Context) -> None:
        hog()

    engine = on_disk.engine(blocking)
    async with engine.worker(warn_blocked=0):
        assert "perdure loop watch" not in {thread.name for thread in threading.enumerate()}
        await (await engine.start(blocking())).result("60s")
    assert reports(caplog) == []


async def test_a_sync_step_may_take_its_time(on_disk: Stage, caplog: pytest.LogCaptureFixture) -> None:
    @workflow("blocks.sync.v1")
    async def stepping(ctx: Context) -> None:
        await ctx.step(hog)

    engine = on_disk.engine(stepping)
    async with engine.worker():
        await (await engine.start(stepping())).result("60s")
    assert reports(caplog) == []


async def test_many_short_callbacks_in_a_row_are_no_block(on_disk: Stage, caplog: pytest.LogCaptureFixture) -> None:
    @workflow("blocks.crowd.v1")
    async def short(ctx: Context) -> None:
        hog(0.01)

    engine = on_disk.engine(short)
    runs = await engine.start_many([short() for _ in range(100)])
    async with engine.worker():
        for run in runs:
            await run.result("60s")
    assert reports(caplog) == []


async def test_code_of_the_user_outside_of_runs_is_logged_too(on_disk: Stage, caplog: pytest.LogCaptureFixture) -> None:
    @workflow("blocks.none.v1")
    async def idle(ctx: Context) -> None: ...

    engine = on_disk.engine(idle)
    async with engine.worker():
        await asyncio.create_task(_hog())
        await eventually(lambda: len(reports(caplog)) == 1)
    [one] = reports(caplog)
    assert "by code outside of workflows and steps" in one["message"]
    assert one["run_id"] is None


async def _hog() -> None:
    hog()


@pytest.mark.skipif(sys.version_info < (3, 12), reason="Python 3.11 does not tell the context of a task")
async def test_a_task_that_a_step_has_made_is_the_steps(on_disk: Stage, caplog: pytest.LogCaptureFixture) -> None:
    async def charge() -> None:
        await asyncio.create_task(_hog())

    @workflow("blocks.task.v1")
    async def stepping(ctx: Context) -> None:
        await ctx.step(charge)

    engine = on_disk.engine(stepping)
    async with engine.worker():
        await (await engine.start(stepping(), id="one")).result("60s")
        await eventually(lambda: len(reports(caplog)) == 1)
    assert reports(caplog)[0]["location"] == "charge"


async def test_a_process_that_was_suspended_has_blocked_nothing(
    on_disk: Stage, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watch is called late, and the process has used no CPU time meanwhile."""
    now = 0.0
    caplog.set_level(logging.WARNING)

    class Clock:
        def monotonic(self) -> float:
            return now

    watch = loop_watch.LoopWatch(Clock(), 0.1, lambda: "w")  # type: ignore[arg-type] # the only part that it uses
    monkeypatch.setattr(loop_watch, "_find_culprit", lambda *_: Culprit("r", "t"))
    # This task runs, so the loop is busy and owes an answer.
    for moment, cpu in ((0.01, 0.0), (0.02, 0.0), (50.0, 0.0), (50.05, 0.05)):
        now = moment
        watch.tick(cpu)
    await asyncio.sleep(0)
    watch.tick(0.0)
    assert reports(caplog) == []
    for moment, cpu in ((60.0, 0.01), (60.01, 0.01), (60.2, 0.19)):
        now = moment
        watch.tick(cpu)
    await asyncio.sleep(0)
    watch.tick(0.0)
    assert len(reports(caplog)) == 1
