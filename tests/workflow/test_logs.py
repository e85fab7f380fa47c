from __future__ import annotations

import asyncio
import logging
import re
from typing import Any

import pytest

from perdure import Context, Retry, RunFailed, Status, activity, workflow
from perdure.core.codec.codec import Codec
from perdure.core.codec.failure import Failure
from perdure.worker import worker as worker_module
from tests.helpers import eventually
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
    async with engine.worker() as worker:
        worker_id = worker.id
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
    assert [record["levelname"] for record in records] == ["DEBUG", "INFO", "INFO", "ERROR", "DEBUG"]
    assert {(record["location"], record["worker"] == worker_id) for record in records} == {
        ("fine", True), ("fail", True), (None, True),
    }  # fmt: skip


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


async def test_a_run_that_fails_for_good_is_an_error_with_the_users_frames_first(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    # The level of a program that configures nothing.
    caplog.set_level(logging.WARNING)
    engine = stage.engine(mixed)
    async with engine.worker():
        run = await engine.start(mixed())
        await until(run, Status.FAILED)
        await eventually(lambda: len(told(caplog)) == 1)
    [of_run] = told(caplog)
    assert (of_run["levelname"], of_run["scope"]) == ("ERROR", "run")
    lines = of_run["exc_text"].splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    frames = [line.strip() for line in lines if line.strip().startswith("File ")]
    assert re.match(r'File ".*test_logs\.py", line \d+, in mixed', frames[0])
    # The step's own frames follow, without the message once more.
    assert re.match(r'File ".*test_logs\.py", line \d+, in fail', frames[-1])
    assert "In the step 'fail' (most recent call last):" in lines
    assert lines.count("ValueError: no") == 1


async def test_an_activity_that_fails_for_good_is_an_error_with_its_frames(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    @activity("log.failing.v1", retry=Retry.never())
    async def failing() -> None:
        await fail()

    caplog.set_level(logging.WARNING)
    engine = stage.engine(failing)
    async with engine.worker():
        await until(await engine.start(failing()), Status.FAILED)
        await eventually(lambda: len(told(caplog)) == 1)
    [one] = told(caplog)
    assert (one["levelname"], one["scope"]) == ("ERROR", "activity")
    frames = [line.strip() for line in one["exc_text"].splitlines() if line.strip().startswith("File ")]
    assert [frame.rpartition(" ")[2] for frame in frames] == ["failing", "fail"]


async def test_a_group_of_errors_is_logged_with_its_members(on_disk: Stage, caplog: pytest.LogCaptureFixture) -> None:
    @workflow("log.group.v1")
    async def grouped(ctx: Context) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(raising(KeyError("left")))
            group.create_task(raising(OSError("right")))

    async def raising(error: Exception) -> None:
        raise error

    caplog.set_level(logging.ERROR)
    engine = on_disk.engine(grouped)
    async with engine.worker():
        await until(await engine.start(grouped()), Status.FAILED)
        await eventually(lambda: len(told(caplog)) == 1)
    [one] = told(caplog)
    assert "+-- 1 of 2 --" in one["exc_text"]
    assert "  | KeyError: 'left'" in one["exc_text"]
    assert "  | OSError: right" in one["exc_text"]
    assert one["exc_text"].count("in raising") == 2


async def test_a_cause_is_logged_before_the_error_that_it_led_to() -> None:
    try:
        try:
            raise KeyError("first")
        except KeyError as error:
            raise ValueError("second") from error
    except ValueError as error:
        text = Failure.of(error, Codec()).format()
    assert text.index("KeyError: 'first'") < text.index("direct cause") < text.index("ValueError: second")


async def test_a_blocked_run_is_an_error_in_the_log(on_disk: Stage, caplog: pytest.LogCaptureFixture) -> None:
    @workflow("log.typed.v1")
    async def typed(ctx: Context, value: int) -> None: ...

    @workflow("log.typed.v1")
    async def other(ctx: Context, word: str) -> None: ...

    caplog.set_level(logging.WARNING)
    run = await on_disk.engine(typed).start(typed(7))
    async with on_disk.engine(other).worker():
        await until(run, Status.BLOCKED)
        await eventually(lambda: len(told(caplog)) == 1)
    [one] = told(caplog)
    assert (one["levelname"], one["status"], one["run_id"]) == ("ERROR", "blocked", run.id)
    assert "DecodeError" in one["exc_text"]


async def test_a_run_that_expires_without_a_worker_is_an_error_in_the_log(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    engine = stage.engine(mixed, done)
    run = await engine.start(mixed(), queue="elsewhere", deadline="1ms")

    def told_of_it() -> list[logging.LogRecord]:
        return [one for one in caplog.records if one.name == "perdure.store" and run.id in one.getMessage()]

    async with engine.worker(lease="1s"):
        await until(run, Status.FAILED)
        await eventually(told_of_it)
    [one] = told_of_it()
    assert one.levelname == "ERROR"
    assert f"run {run.id} is a dead letter: " in one.getMessage()
    assert "not finished by its deadline" in one.getMessage()


def of_worker(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the worker says of itself. On a busy machine, its watch may say that the loop was blocked."""
    messages = [record.getMessage() for record in caplog.records if record.name == "perdure.worker"]
    return [message for message in messages if not message.startswith("the event loop of worker ")]


async def test_a_worker_logs_its_start_its_stop_and_what_it_waits_for(
    stage: Stage, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, go_on = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        entered.set()
        await go_on.wait()

    @workflow("log.hold.v1")
    async def holding(ctx: Context) -> None:
        await ctx.step(hold)

    monkeypatch.setattr(worker_module, "_SPEAKS_EVERY", 0.05)
    caplog.set_level(logging.INFO, "perdure.worker")
    engine = stage.engine(holding, mixed)
    worker = engine.worker(slots=7, queues=["a", "default"], grace="60s")
    await worker.start()
    run = await engine.start(holding(), id="held")
    await entered.wait()
    stopping = asyncio.create_task(worker.stop())
    await eventually(lambda: len(of_worker(caplog)) >= 4)
    begun, stops, *waits = of_worker(caplog)
    go_on.set()
    await stopping
    assert await run.status() is Status.COMPLETED
    # Between the end of the step and that of the run, there may be others.
    *_, ended = of_worker(caplog)
    assert begun.startswith(f"worker {worker.id} has started on ")
    assert begun.endswith(": types log.hold.v1, log.mixed.v1; queues a, default; 7 slots; lease 15 s")
    assert stops == f"worker {worker.id} stops"
    assert len(waits) >= 2
    for one in waits:
        assert re.fullmatch(
            rf"worker {worker.id} waits at most \d+ s for 1 run\(s\); under way: hold of run held for \d+ s", one
        )
    assert ended == f"worker {worker.id} has stopped"


async def test_a_worker_logs_the_runs_that_it_gives_back(on_disk: Stage, caplog: pytest.LogCaptureFixture) -> None:
    entered = asyncio.Event()

    async def hold() -> None:
        entered.set()
        await asyncio.Event().wait()

    @workflow("log.hold.v1")
    async def holding(ctx: Context) -> None:
        await ctx.step(hold)

    engine = on_disk.engine(holding)
    async with engine.worker(grace="10ms") as worker:
        await engine.start(holding(), id="held")
        await entered.wait()
    assert f"worker {worker.id} gives 1 run(s) back unfinished: held" in of_worker(caplog)


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
