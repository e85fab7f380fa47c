"""Workflows that are a `def`, on a worker: the same histories as those of an `async def`, and the same care."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from greenlet import greenlet

from perdure import Context, Engine, RunCancelled, RunFailed, Status, workflow
from perdure.admin import Reason
from perdure.blocking import Context as BlockingContext
from perdure.errors import BadArguments, NotInWorkflow
from perdure.testing import Environment
from perdure.workflow.greenlets import WorkflowGreenlet
from tests.helpers import eventually, in_memory
from tests.stage import Stage, until, until_recorded
from tests.workflow.kinds import KILLED, SHAPES, Ledger, double, of_kind

ROOT = Path(__file__).parents[2]


async def histories(engine: Engine, kind: str) -> dict[str, Any]:
    """Results and histories of a hundred runs, without what differs from one execution to the next."""
    flows = {flow.type: flow for flow in of_kind(kind)}
    runs = {
        f"{name}-{number}": await engine.start(flows[f"kinds.{name}.v1"](number), id=f"{kind}-{name}-{number}")
        for name in SHAPES
        for number in range(1, 6)
    }
    found: dict[str, Any] = {}
    for name, run in runs.items():
        try:
            result = await run.result("90s")
        except RunFailed as error:
            result = str(error.__cause__)
        records = [
            (str(each.kind), each.location, None if each.failed else each.payload, each.failed, each.attempts)
            for each in await run.history()
        ]
        # Concurrent steps end in any order.
        found[name] = result, sorted(records, key=repr)
    return found


async def test_a_hundred_workflows_written_as_def_and_as_async_def_have_equal_histories(stage: Stage) -> None:
    found: dict[str, dict[str, Any]] = {}
    engine = stage.engine()
    for kind in ("async", "blocking"):
        flows = {flow.type: flow for flow in of_kind(kind)}
        engine.workflows.clear()
        engine.workflows.update(flows)
        async with engine.worker():
            found[kind] = await histories(engine, kind)
    assert len(found["async"]) == 100
    for name, expected in found["async"].items():
        assert found["blocking"][name] == expected, name


@pytest.mark.parametrize(("first", "second"), [("blocking", "blocking"), ("blocking", "async"), ("async", "blocking")])
async def test_a_run_survives_a_kill_and_is_finished_by_either_kind(
    stage: Stage, tmp_path: Path, first: str, second: str
) -> None:
    if stage.url == "sqlite://":
        pytest.skip("other processes need a database that they can reach")
    engine = stage.engine(KILLED[first])
    await engine.open()
    ledger = Ledger(str(tmp_path / "ledger"))
    run = await engine.start(KILLED[first](str(ledger.path)))
    with process(stage, first) as worker:
        await until_recorded(run, 2)
        await eventually(lambda: "right" in ledger.words())
        worker.send_signal(signal.SIGKILL)
        worker.wait()
    ledger.open_gate()
    with process(stage, second) as worker:
        assert await run.result("90s") == ["first", "left", "right", "last"]
        worker.send_signal(signal.SIGKILL)
        worker.wait()
    # Two steps began together, and the killed one was executed again.
    words = ledger.words()
    assert [words[0], *sorted(words[1:3]), *words[3:]] == ["first", "left", "right", "right", "last"]
    assert [str(record.kind) for record in await run.history() if record.location == "first"] == ["step"]


def process(stage: Stage, kind: str) -> subprocess.Popen[bytes]:
    path = os.pathsep.join([str(ROOT), *sys.path])
    return subprocess.Popen(
        [sys.executable, "-m", "tests.workflow.kinds", stage.url, kind],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
    )


seen: list[str] = []


@workflow("blocking.patient.v1")
def patient(ctx: BlockingContext) -> str:
    try:
        ctx.step(double, 1)
        ctx.sleep("1h")
    except asyncio.CancelledError:
        seen.append(f"cleanup {ctx.step(double, 4)}")
        raise
    return "slept"


async def test_a_cancellation_reaches_code_that_blocks(stage: Stage) -> None:
    seen.clear()
    engine = stage.engine(patient)
    async with engine.worker():
        run = await engine.start(patient())
        await until(run, Status.WAITING)
        await run.cancel("enough")
        with pytest.raises(RunCancelled):
            await run.result("60s")
    assert seen == ["cleanup 8"]


corrected: list[bool] = []


@workflow("blocking.bug.v1")
def buggy(ctx: BlockingContext) -> int:
    value = ctx.step(double, 21)
    if not corrected:
        undefined  # type: ignore[name-defined] # noqa: B018, F821 - the bug
    return value


async def test_a_bug_blocks_a_run_of_blocking_code_until_it_is_corrected(stage: Stage) -> None:
    corrected.clear()
    engine = stage.engine(buggy)
    async with engine.worker():
        run = await engine.start(buggy())
        await until(run, Status.BLOCKED)
        assert (await run.info()).reason is Reason.BROKEN
        corrected.append(True)
        await engine.runs.retry(run.id)
        assert await run.result("60s") == 42


def stacks() -> list[greenlet]:
    """Stacks of workflow code in memory."""
    return [one for one in in_memory(WorkflowGreenlet) if not one.dead]


async def test_no_thread_is_held_while_many_blocking_runs_wait() -> None:
    @workflow("blocking.crowd.v1")
    def crowd(ctx: BlockingContext, number: int) -> int:
        ctx.sleep("30d")
        return number

    async with Environment([crowd]) as env:
        threads = threading.active_count()
        runs = [await env.start(crowd(number)) for number in range(200)]
        await env.advance("1d")
        # Threads of earlier tests may end meanwhile.
        assert threading.active_count() <= threads
        await env.advance("30d")
        assert [await run.result() for run in runs] == list(range(200))


async def test_a_parked_run_that_leaves_memory_keeps_no_greenlet() -> None:
    async with Engine("sqlite://", [patient]) as engine, engine.worker(resident=0):
        runs = [await engine.start(patient()) for _ in range(20)]
        for run in runs:
            await until(run, Status.WAITING)
        await eventually(lambda: not stacks())
        await runs[0].cancel()
        with pytest.raises(RunCancelled):
            await runs[0].result("60s")


@workflow("blocking.io.v1")
def does_io(ctx: BlockingContext) -> str:
    ctx.step(double, 1)
    return ctx.gather(lambda: Path(__file__).read_text(encoding="utf-8"))[0][:3]


async def test_io_in_blocking_workflow_code_is_refused_in_strict_mode() -> None:
    async with Environment([does_io], strict=True) as env:
        run = await env.start(does_io())
        with pytest.raises((RunFailed, NotInWorkflow), match=r"test_blocking\.py:\d+ \(in does_io"):
            await run.result()


async def test_blocking_code_that_keeps_the_loop_is_reported_with_its_stack(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    @workflow("blocking.hog.v1")
    def hog(ctx: BlockingContext) -> None:
        ctx.step(double, 1)
        time.sleep(1)

    def reports() -> list[Any]:
        # On a busy machine, the loop may also stand still in code of the engine, which has no stack of the user's.
        told = [record for record in caplog.records if "by the workflow of run" in record.getMessage()]
        return [record for record in told if "in hog" in (record.exc_text or "")]

    engine = stage.engine(hog)
    async with engine.worker():
        for _ in range(20):
            await (await engine.start(hog())).result("60s")
            if reports():
                break
    assert "(blocking.hog.v1)" in reports()[0].getMessage()


# what is refused


def test_a_def_takes_a_blocking_context_and_an_async_def_another() -> None:
    def sync(ctx: Context) -> None:
        """Should be async."""

    async def coroutine(ctx: BlockingContext) -> None:
        """Should not be async."""

    def generator(ctx: BlockingContext) -> Any:
        yield 1

    def late(number: int, ctx: BlockingContext) -> None:
        """Has its parameters in the wrong order."""

    def bare() -> None:
        """Has no context."""

    make: Any = workflow("x.v1")
    for function, words in (
        (sync, r"must be an `async def` to take a perdure.Context; a `def` takes a perdure.blocking.Context"),
        (coroutine, "is an `async def`, whose context is a perdure.Context"),
        (generator, "has a `yield`"),
        (late, r"put the context before it: `def late\(ctx: Context, number: int\)`"),
        (bare, r"must take the Context as its first parameter: `def bare\(ctx: Context, ...\)`"),
        (patient(), "must be an `async def`"),
    ):
        with pytest.raises(BadArguments, match=words):
            make(function)


def test_a_context_is_no_argument_of_a_step_or_of_another_workflow() -> None:
    with pytest.raises(BadArguments, match="was given a context"):
        patient(BlockingContext.__new__(BlockingContext))  # type: ignore[call-arg] # wrong on purpose


WITHOUT = """
import sys
sys.modules["greenlet"] = None
from perdure import workflow
from perdure.blocking import Context, Engine
try:
    @workflow("x.v1")
    def flow(ctx: Context) -> None: ...
except Exception as error:
    print(type(error).__name__, error)
"""


def test_without_greenlet_the_error_says_what_to_install() -> None:
    told = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=True)
    assert told.stdout.startswith("BadArguments workflow 'x.v1': __main__.flow must be an `async def`")
    assert "pip install 'perdure[sync]'" in told.stdout


def test_a_process_without_blocking_workflows_does_not_import_greenlet() -> None:
    code = "import sys, perdure.blocking, perdure.testing; print('greenlet' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout == "False\n"
