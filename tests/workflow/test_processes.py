"""Steps in processes of their own."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import sys
from pathlib import Path

import pytest

from perdure import (
    Activity,
    Context,
    Retry,
    RunCancelled,
    RunFailed,
    Status,
    StepTimeout,
    UsageError,
    activity,
    step,
    workflow,
)
from perdure.admin import RecordKind
from perdure.errors import StepFailed
from perdure.worker import WorkerSettings
from perdure.worker.steps.processes import _RAISED, _raised
from tests.helpers import eventually
from tests.stage import Stage, until
from tests.workflow import crunching


@workflow("process.crunch.v1")
async def crunching_all(ctx: Context) -> list[dict[str, int]]:
    first = await ctx.step(crunching.crunch, [1, 2])
    return [first]


@workflow("process.fail.v1")
async def failing(ctx: Context, how: str) -> None:
    await ctx.step(crunching.fail, how)


@workflow("process.dies.v1")
async def dying(ctx: Context, marker: str) -> str:
    return await ctx.step(crunching.dies_once, marker)


@workflow("process.lingers.v1")
async def lingering(ctx: Context, marker: str, timeout: str | None = None) -> None:
    await ctx.options(process=True, timeout=timeout, retry=Retry.never()).step(crunching.lingers, marker)


@workflow("process.tells.v1")
async def telling(ctx: Context) -> int:
    return await ctx.step(crunching.tells, 5)


def said_in(marker: Path) -> int:
    return int(marker.read_text() or 0) if marker.exists() else 0


def is_gone(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    # One whose parent is dead is for the system to bury, which may take its time.
    try:
        return "State:\tZ" in Path(f"/proc/{process}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        # Either it has been buried just now, which the next look tells, or there is no such folder on this system.
        return False


async def process_in(marker: Path) -> int:
    async def there() -> bool:
        return bool(said_in(marker))

    await eventually(there, saying="a process having begun")
    return said_in(marker)


async def until_gone(process: int) -> None:
    async def gone() -> bool:
        return is_gone(process)

    await eventually(gone, saying=f"process {process} having ended")


async def test_an_activity_in_a_process_is_ended_at_once_when_its_run_is_cancelled(
    on_disk: Stage, tmp_path: Path
) -> None:
    linger: Activity[[str], None] = activity("process.activity.v1", process=True)(crunching.lingers)
    engine, marker = on_disk.engine(linger), tmp_path / "process"
    # It cannot see that it is to stop, so it is not given the time for that.
    async with engine.worker(step_processes=1, grace="1h"):
        run = await engine.start(linger(str(marker)))
        process = await process_in(marker)
        await run.cancel()
        await until(run, Status.CANCELLED)
        await until_gone(process)


async def test_a_step_runs_in_a_process_of_its_own_which_is_used_again(on_disk: Stage) -> None:
    engine = on_disk.engine(crunching_all)
    async with engine.worker(step_processes=1):
        first, second = [await (await engine.start(crunching_all())).result("60s") for _ in range(2)]
    assert first[0]["sum"] == 3
    assert first[0]["attempt"] == 1
    assert first[0]["process"] == second[0]["process"] != os.getpid()
    await until_gone(first[0]["process"])


async def test_what_a_process_raises_is_raised_in_the_workflow(on_disk: Stage) -> None:
    engine = on_disk.engine(failing)
    async with engine.worker(step_processes=1):
        for how, message in [
            ("plainly", "not here"),
            ("oddly", "1 and 2"),
            ("exit", "SystemExit"),
            ("return", "pickl"),
        ]:
            with pytest.raises(RunFailed, match=message) as caught:
                await (await engine.start(failing(how))).result("60s")
            if how == "plainly":
                assert isinstance(caught.value.__cause__, LookupError)
                assert any("crunching.py" in note for note in caught.value.__cause__.__notes__)


def test_an_error_that_cannot_be_made_again_from_its_arguments_leaves_its_process_as_another() -> None:
    how, error = pickle.loads(_raised(crunching.Odd(1, 2)))
    assert how == _RAISED
    assert isinstance(error, StepFailed)
    assert "1 and 2" in str(error)


async def test_an_error_that_leaves_its_process_as_another_is_given_up_by_name(on_disk: Stage) -> None:
    @workflow("process.by_name.v1")
    async def trying(ctx: Context, name: str) -> None:
        await ctx.options(retry=Retry(attempts=2, initial="1ms", give_up_on=(name,))).step(crunching.fail, "oddly")

    engine = on_disk.engine(trying)
    async with engine.worker(step_processes=1):
        for name, attempts in (("Odd", 0), ("tests.workflow.crunching.Odd", 0), ("Even", 1)):
            run = await engine.start(trying(name))
            with pytest.raises(RunFailed, match="1 and 2"):
                await run.result("60s")
            kinds = [record.kind for record in await run.history()]
            assert kinds == [RecordKind.ATTEMPT] * attempts + [RecordKind.STEP]


async def test_a_process_that_is_killed_fails_an_attempt_and_another_follows(on_disk: Stage, tmp_path: Path) -> None:
    engine = on_disk.engine(dying)
    async with engine.worker():
        run = await engine.start(dying(str(tmp_path / "marker")))
        assert await run.result("60s") == "attempt 2"
    history = await run.history()
    assert "exit code -9" in (history[0].payload or "")


async def test_a_timeout_kills_the_process(on_disk: Stage, tmp_path: Path) -> None:
    engine = on_disk.engine(lingering, crunching_all)
    marker = tmp_path / "marker"
    async with engine.worker(step_processes=1):
        # The process imports the module of its first step, which counts against the timeout, and is used again.
        await (await engine.start(crunching_all())).result("60s")
        run = await engine.start(lingering(str(marker), "3s"))
        process = await process_in(marker)
        with pytest.raises(RunFailed, match="timeout of 3 s") as caught:
            await run.result("60s")
        assert isinstance(caught.value.__cause__, StepTimeout)
        await until_gone(process)


async def test_a_cancellation_kills_the_process(on_disk: Stage, tmp_path: Path) -> None:
    engine = on_disk.engine(lingering)
    marker = tmp_path / "marker"
    async with engine.worker():
        run = await engine.start(lingering(str(marker)))
        process = await process_in(marker)
        await run.cancel()
        with pytest.raises(RunCancelled):
            await run.result("60s")
        await until_gone(process)


async def test_a_worker_that_stops_leaves_no_process_behind(on_disk: Stage, tmp_path: Path) -> None:
    engine = on_disk.engine(lingering)
    marker = tmp_path / "marker"
    async with engine.worker(grace=0):
        await engine.start(lingering(str(marker)))
        process = await process_in(marker)
    await until_gone(process)


WORKER = """
import asyncio, sys
from perdure import Engine
from tests.workflow.test_processes import lingering

async def main():
    async with Engine(sys.argv[1], [lingering]) as engine, engine.worker():
        await engine.start(lingering(sys.argv[2]))
        await asyncio.Event().wait()

if __name__ == "__main__":
    asyncio.run(main())
"""


async def test_a_worker_that_is_killed_leaves_no_process_behind(tmp_path: Path) -> None:
    marker, script = tmp_path / "marker", tmp_path / "script.py"
    script.write_text(WORKER)
    root = Path(__file__).parents[2]
    worker = await asyncio.create_subprocess_exec(
        sys.executable, str(script), f"sqlite:///{tmp_path / 'runs.db'}", str(marker),
        env={**os.environ, "PYTHONPATH": str(root)},
    )  # fmt: skip
    process = await process_in(marker)
    worker.send_signal(signal.SIGKILL)
    await worker.wait()
    await until_gone(process)


async def test_a_step_in_a_process_can_emit(on_disk: Stage) -> None:
    engine = on_disk.engine(telling)
    async with engine.worker():
        run = await engine.start(telling())
        assert await run.result("60s") == 5
    assert [item.value async for item in run.stream("numbers", int)] == [0, 1, 2, 3, 4]


async def test_what_cannot_be_pickled_is_refused_with_advice(on_disk: Stage) -> None:
    def local() -> None:
        pass

    @workflow("process.local.v1")
    async def locally(ctx: Context) -> None:
        await ctx.options(process=True).step(local)

    engine = on_disk.engine(locally)
    async with engine.worker():
        run = await engine.start(locally())
        with pytest.raises(RunFailed, match="at the top of a module"):
            await run.result("60s")
    assert len(await run.history()) == 1


async def test_an_async_function_or_a_transaction_cannot_have_a_process(on_disk: Stage) -> None:
    async def on_the_loop() -> None:
        pass

    with pytest.raises(UsageError, match="async def"):
        step(process=True)(on_the_loop)

    @workflow("process.refused.v1")
    async def refused(ctx: Context, transaction: bool) -> None:
        if transaction:
            # Wrong on purpose:
            await ctx.options(process=True).transaction(crunching.lingers, "x")  # type: ignore[call-overload] # the mistake that is tested
        await ctx.options(process=True).step(on_the_loop)

    engine = on_disk.engine(refused)
    async with engine.worker():
        for transaction, message in ((False, "async def"), (True, "another process")):
            with pytest.raises(RunFailed, match=message):
                await (await engine.start(refused(transaction))).result("60s")


def test_a_worker_needs_room_for_a_process() -> None:
    with pytest.raises(UsageError, match="step_processes=0"):
        WorkerSettings.of(step_processes=0)
