from __future__ import annotations

import asyncio
import threading

import pytest

from perdure import Context, Fatal, Retry, RunFailed, Status, UsageError, activity, workflow
from perdure.admin import DeadLetterNotice, ErrorNotice, Event
from perdure.worker.commit import hooks
from tests.helpers import eventually
from tests.stage import Stage, until

TWICE = Retry(attempts=2, initial=0.01, jitter=0)


async def fail(number: int) -> None:
    raise ValueError(f"no {number}")


@workflow("hook.failing.v1", retry=TWICE)
async def failing(ctx: Context) -> None:
    await ctx.options(retry=TWICE).step(fail, 7)


@activity("hook.failing_activity.v1", retry=TWICE)
async def failing_activity() -> None:
    raise ValueError("never")


@workflow("hook.fine.v1")
async def fine(ctx: Context) -> int:
    return 1


async def test_every_error_is_told_with_what_follows_from_it(stage: Stage) -> None:
    told: list[ErrorNotice] = []
    engine = stage.engine(failing, on_error=told.append)
    async with engine.worker():
        run = await engine.start(failing())
        with pytest.raises(RunFailed):
            await run.result("20s")
    # Stopping the worker makes the calls that were waiting.
    assert [(one.scope, one.location, one.attempt, one.will_retry) for one in told] == [
        ("step", "fail", 1, True),
        ("step", "fail", 2, False),
        ("run", "", 1, True),
        ("step", "fail", 1, True),
        ("step", "fail", 2, False),
        ("run", "", 2, False),
    ]
    assert {(one.run_id, one.type, one.error, one.message) for one in told} == {
        (run.id, "hook.failing.v1", "ValueError", "no 7")
    }
    assert all((one.retry_at > 0) == one.will_retry for one in told)


async def test_errors_of_activities_are_told(stage: Stage) -> None:
    told: list[ErrorNotice] = []
    engine = stage.engine(failing_activity, on_error=told.append)
    async with engine.worker():
        run = await engine.start(failing_activity())
        await until(run, Status.FAILED)
    assert [(one.scope, one.attempt, one.will_retry, one.retry_at > 0) for one in told] == [
        ("activity", 1, True, True),
        ("activity", 2, False, False),
    ]


async def test_a_dead_letter_is_told_once_whatever_the_level(stage: Stage) -> None:
    told: list[DeadLetterNotice] = []

    async def tell(letter: DeadLetterNotice) -> None:
        await asyncio.sleep(0)
        told.append(letter)

    engine = stage.engine(failing_activity, fine, on_dead_letter=tell, audit="off")
    async with engine.worker(lease=0.5), engine.worker(lease=0.5):
        run = await engine.start(failing_activity())
        await until(run, Status.FAILED)
        assert await (await engine.start(fine())).result("20s") == 1
        late = await engine.start(fine(), at="1h", deadline="10ms")
        await until(late, Status.FAILED)
    assert [(letter.run.id, letter.reason, letter.run.status) for letter in told] == [
        (run.id, "failed", Status.FAILED),
        (late.id, "expired", Status.FAILED),
    ]


async def test_what_cannot_be_decoded_is_a_dead_letter_and_what_diverged_is_not(on_disk: Stage) -> None:
    told: list[DeadLetterNotice] = []

    @workflow("hook.fine.v1")
    async def other(ctx: Context, number: int) -> int:
        return number

    async with on_disk.engine(fine) as before:
        run = await before.start(fine())
    engine = on_disk.engine(other, on_dead_letter=told.append)
    async with engine.worker():
        await until(await engine.get(run.id), Status.BLOCKED)
    assert [(letter.run.id, letter.reason) for letter in told] == [(run.id, "undecodable")]


async def test_every_event_that_this_process_wrote_is_told(stage: Stage) -> None:
    told: list[Event] = []
    engine = stage.engine(fine, on_event=told.append, audit="full")
    async with engine.worker():
        run = await engine.start(fine())
        await run.result("20s")
    written = [(event.run_id, event.kind, event.actor, event.data) for event in await run.events()]
    assert [(one.run_id, one.kind, one.actor, one.data) for one in told] == written
    assert {one.id for one in told} == {0}


async def test_a_hook_that_fails_or_hangs_harms_no_run(
    stage: Stage, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hooks, "PATIENCE", 0.05)
    entered, released = threading.Event(), threading.Event()

    def hang(event: Event) -> None:
        entered.set()
        released.wait(600)
        raise SystemExit("a hook that has had enough")

    async def raise_it(notice: ErrorNotice) -> None:
        raise Fatal("a hook that does not work")

    engine = stage.engine(fine, failing_activity, on_event=hang, on_error=raise_it)
    async with engine.worker():
        runs = [await engine.start(fine()) for _ in range(20)]
        assert [await run.result("20s") for run in runs] == [1] * 20
        await eventually(entered.is_set, saying="the hook being called")
        failing_run = await engine.start(failing_activity())
        await until(failing_run, Status.FAILED)
    released.set()
    assert "were not made before the worker stopped" in caplog.text


async def test_errors_of_hooks_are_said_now_and_then(
    on_disk: Stage, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hooks, "QUIET", 3600.0)

    async def raise_it(event: Event) -> None:
        raise Fatal("a hook that does not work")

    engine = on_disk.engine(fine, on_event=raise_it)
    async with engine.worker():
        runs = [await engine.start(fine()) for _ in range(20)]
        assert [await run.result("20s") for run in runs] == [1] * 20
    said = [record.getMessage() for record in caplog.records if record.name == "perdure.hooks"]
    assert said == ["on_event failed (1 times since the last word)"]


async def test_calls_that_find_no_room_are_left_out_and_counted(
    on_disk: Stage, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hooks, "ROOM", 2)
    told: list[Event] = []
    blocked = asyncio.Event()

    async def wait(event: Event) -> None:
        await blocked.wait()
        told.append(event)

    engine = on_disk.engine(fine, on_event=wait)
    async with engine.worker():
        runs = await engine.start_many([fine() for _ in range(21)])
        assert [await run.result("60s") for run in runs] == [1] * 21
        assert engine._session._hook_caller is not None
        dropping = engine._session._hook_caller
        # One call is under way, and two wait.
        await eventually(lambda: dropping.dropped == 21 * 3 - 3, saying="all other calls being left out")
        assert len(dropping._waiting) == 2
        blocked.set()
    assert "slower than what they are told of" in caplog.text
    assert len(told) == 3


def test_a_hook_that_is_no_function_is_refused(on_disk: Stage) -> None:
    with pytest.raises(UsageError, match="on_error=7 is not a function"):
        on_disk.engine(fine, on_error=7)
