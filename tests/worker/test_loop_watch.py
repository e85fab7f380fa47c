"""A workflow or an async step that blocks the event loop is in the log, with its stack; other work is not."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import cache, partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from perdure import Call, Context, Engine, activity, step_info, workflow
from perdure.core.system import LoopTrace
from perdure.host import Host
from perdure.worker import loop_watch
from perdure.worker.loop_watch import Culprit, without_collection
from perdure.worker.steps.attempt import Attempt
from tests.helpers import eventually
from tests.stage import Stage

#: Ten times the limit, so that a machine under load still takes samples meanwhile.
BLOCKED = 1.0


#: As a worker has it unless told otherwise.
LIMIT = 0.1


class Clock:
    """The part of a system that a watch uses."""

    now = cpu = 0.0
    #: Whether the CPU time is that of the loop's thread.
    of_loop = True

    def monotonic(self) -> float:
        return self.now

    def read_cpu(self) -> tuple[float, float]:
        return self.cpu, self.cpu if self.of_loop else 0.0

    def watch(self, *attempts: Attempt) -> loop_watch.LoopWatch:
        trace = LoopTrace(self.monotonic)
        return loop_watch.LoopWatch(self, LIMIT, lambda: "w", trace, lambda: attempts, lambda: False)  # type: ignore[arg-type] # as above

    def tick(self, watch: loop_watch.LoopWatch, now: float, cpu: float) -> None:
        """Call the watch at that time, after so much CPU time."""
        self.now = now
        self.cpu += cpu
        watch.tick(self.read_cpu)


def reports(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [vars(record) for record in caplog.records if "was blocked for" in record.getMessage()]


def stacks_of(caplog: pytest.LogCaptureFixture, run_type: str) -> list[dict[str, Any]]:
    """Reports of workflows of that type, with a stack. There may be others where the machine is busy."""
    return [one for one in reports(caplog) if one["run_type"] == run_type and one["exc_text"]]


def hog(seconds: float = BLOCKED) -> None:
    time.sleep(seconds)


async def result_of(engine: Engine, call: Call[None]) -> None:
    await (await engine.start(call)).result("60s")


async def report_of(
    caplog: pytest.LogCaptureFixture, wanted: str, block: Callable[[], Awaitable[object]]
) -> dict[str, Any]:
    """Block the loop until there is such a report: on a busy machine the watch may get no processor meanwhile."""

    def found() -> list[dict[str, Any]]:
        return [one for one in reports(caplog) if wanted in one["message"]]

    for _ in range(20):
        await block()
        with suppress(AssertionError):
            return (await eventually(found, within=3))[0]
    raise AssertionError(f"{wanted!r} was not reported; reported was {reports(caplog)}")


async def test_a_workflow_that_blocks_the_loop_is_logged_with_its_stack(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    @workflow("blocks.workflow.v1")
    async def blocking(ctx: Context) -> None:
        hog()

    engine = stage.engine(blocking)
    async with engine.worker() as worker:
        one = await report_of(caplog, "by the workflow of run ", lambda: result_of(engine, blocking()))
    assert one["levelname"] == "WARNING"
    assert f"the event loop of worker {worker.id} was blocked for" in one["message"]
    assert f"by the workflow of run {one['run_id']} (blocks.workflow.v1)" in one["message"]
    assert "; put blocking code in a step: a plain `def` runs in a thread" in one["message"]
    assert (one["run_type"], one["location"]) == ("blocks.workflow.v1", None)
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
        call: Call[None] = stepping() if kind == "step" else charging()
        one = await report_of(caplog, "by step ", lambda: result_of(engine, call))
    location = "charge" if kind == "step" else "blocks.activity.v1"
    assert f"by step {location} of run {one['run_id']}, attempt 1" in one["message"]
    assert "; make the function a plain `def`, which runs in a thread, await an async library, or" in one["message"]
    assert (one["location"], one["attempt"]) == (location, 1)
    assert one["exc_text"].count("  File ") == 2


async def test_a_loop_that_is_blocked_for_long_is_logged_before_it_is_free(
    on_disk: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    seen = False

    @workflow("blocks.long.v1")
    async def blocking(ctx: Context) -> None:
        nonlocal seen
        deadline = time.monotonic() + 60
        while not (seen := bool(stacks_of(caplog, "blocks.long.v1"))) and time.monotonic() < deadline:
            hog(0.01)

    engine = on_disk.engine(blocking)
    async with engine.worker(stall_limit="120s", lease="120s"):
        await (await engine.start(blocking())).result("90s")
    assert seen
    assert len(stacks_of(caplog, "blocks.long.v1")) == 1


async def test_one_place_is_logged_once_and_the_rest_is_counted(
    on_disk: Stage, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # For as long as the test says, and not for a time that may pass while the machine does other things.
    monkeypatch.setattr(loop_watch, "QUIET", 3600.0)
    log, found = loop_watch.LoopWatch._log, list[str]()

    def count_and_log(self: loop_watch.LoopWatch, place: tuple[str, str], *args: Any) -> None:
        log(self, place, *args)
        found.append(place[1])

    monkeypatch.setattr(loop_watch.LoopWatch, "_log", count_and_log)

    @workflow("blocks.often.v1")
    async def blocking(ctx: Context) -> None:
        hog()

    async def until_found(times: int) -> None:
        for _ in range(40):
            await (await engine.start(blocking())).result("60s")
            if found.count("hog") >= times:
                break

    engine = on_disk.engine(blocking)
    async with engine.worker():
        await until_found(3)
        [first] = stacks_of(caplog, "blocks.often.v1")
        monkeypatch.setattr(loop_watch, "QUIET", 0.0)
        await until_found(found.count("hog") + 1)
    second = stacks_of(caplog, "blocks.often.v1")[1]
    assert "more times at this place" not in first["message"]
    assert "more times at this place since the last report)" in second["message"]


async def test_nothing_is_logged_where_it_is_switched_off(on_disk: Stage, caplog: pytest.LogCaptureFixture) -> None:
    @workflow("blocks.off.v1")
    async def blocking(ctx: Context) -> None:
        hog()

    engine = on_disk.engine(blocking)
    # The thread of an earlier worker ends a moment after it.
    earlier = set(threading.enumerate())
    async with engine.worker(warn_blocked=0):
        assert "perdure loop watch" not in {thread.name for thread in set(threading.enumerate()) - earlier}
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
    # All of them take longer than the limit, and none does, not even where the machine is busy.
    async with engine.worker(warn_blocked=0.5):
        for run in runs:
            await run.result("60s")
    assert reports(caplog) == []


@cache
def slow_to_parse(seconds: float) -> str:
    """A text that json needs so many seconds of CPU for, in one call that keeps the interpreter lock."""
    text = "[" + "1," * 1_000_000 + "1]"
    while True:
        begun = time.process_time()
        json.loads(text)
        if (spent := time.process_time() - begun) >= seconds:
            return text
        text = text[:-1] + ",1" * int(len(text) / 2 * (1.5 * seconds / max(spent, 0.01) - 1)) + "]"


@pytest.fixture
def late_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the loop go on before each sample, as after a long call into C if other threads get the lock first."""
    tick = loop_watch.LoopWatch.tick

    def tick_later(self: loop_watch.LoopWatch, *args: Any) -> float:
        gone_on = threading.Event()
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._loop.call_soon, gone_on.set)
            gone_on.wait(60)
        return tick(self, *args)

    monkeypatch.setattr(loop_watch.LoopWatch, "tick", tick_later)


@pytest.fixture
def first_sample(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set after the first sample of a watch, which finds nothing out: it is the beginning."""
    sample, taken = loop_watch.LoopWatch._sample, threading.Event()

    def sample_and_tell(self: loop_watch.LoopWatch, *args: Any, **options: Any) -> float:
        pause = sample(self, *args, **options)
        taken.set()
        return pause

    monkeypatch.setattr(loop_watch.LoopWatch, "_sample", sample_and_tell)
    return taken


@pytest.mark.parametrize("samples", ["late", "usual"])
@pytest.mark.parametrize("kind", ["workflow", "step", "step that goes on"])
async def test_c_code_that_keeps_the_interpreter_lock_is_found_out_each_time(
    on_disk: Stage,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    first_sample: threading.Event,
    kind: str,
    samples: str,
) -> None:
    """Which thread gets the lock after it is chance. The report names the run in any case."""
    monkeypatch.setattr(loop_watch, "QUIET", 0.0)
    if samples == "late":
        request.getfixturevalue("late_samples")

    async def parse() -> None:
        json.loads(text)
        if kind == "step that goes on":
            # Until it is reported, so that it is still in progress.
            await eventually(lambda: reports_of(step_info().run_id))

    @workflow("blocks.lock.v1")
    async def parsing(ctx: Context) -> None:
        if kind == "workflow":
            json.loads(text)
        else:
            await ctx.step(parse)

    def reports_of(run_id: str) -> list[dict[str, Any]]:
        return [one for one in reports(caplog) if one["run_id"] == run_id]

    text = slow_to_parse(3 * LIMIT)
    ids = [f"run-{number}" for number in range(3)]
    engine = on_disk.engine(parsing)
    async with engine.worker():
        await eventually(first_sample.is_set)
        for run_id in ids:
            await (await engine.start(parsing(), id=run_id)).result("90s")
            await eventually(partial(reports_of, run_id), saying=f"a report of {run_id}")
    kept = " by code that kept the interpreter lock (a long call into C), most likely"
    found = [one for run_id in ids for one in reports_of(run_id)]
    for one in found:
        culprit = "the workflow of run" if kind == "workflow" else "step parse of run"
        assert f" by {culprit} {one['run_id']}" in one["message"]
        assert one["location"] == (None if kind == "workflow" else "parse")
    # Where the machine stops between a sample and the call, the call is no more than a part of the block.
    [first, *_] = [one["message"] for one in found if kept in one["message"]]
    assert first.endswith("; a thread does not help such code; put it in a step with process=True")


async def test_c_code_in_another_thread_is_not_the_loops(
    on_disk: Stage, caplog: pytest.LogCaptureFixture, first_sample: threading.Event
) -> None:
    """It keeps the lock as well. The loop's thread uses no CPU time meanwhile."""

    def parse() -> None:
        json.loads(text)

    @workflow("blocks.thread.v1")
    async def stepping(ctx: Context) -> None:
        await ctx.step(parse)

    text = slow_to_parse(3 * LIMIT)
    engine = on_disk.engine(stepping)
    async with engine.worker():
        await eventually(first_sample.is_set)
        await (await engine.start(stepping())).result("90s")
        await eventually(lambda: reports(caplog))
    assert all(" by code in another thread that kept the interpreter lock" in one["message"] for one in reports(caplog))


@pytest.mark.parametrize("seen", [None, Culprit("r", "t")], ids=["nothing", "a run"])
async def test_a_lock_that_was_kept_by_code_that_no_sample_shows_is_in_the_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, seen: Culprit | None
) -> None:
    """The watch is called late, the process has used CPU time meanwhile, and the loop is elsewhere by then."""
    clock = Clock()
    watch = clock.watch()
    monkeypatch.setattr(loop_watch, "_find_culprit", lambda *_: seen)
    clock.tick(watch, 0.01, 0.0)
    monkeypatch.setattr(loop_watch, "_find_culprit", lambda *_: None)
    for moment in (1.02, 3.03):
        await asyncio.sleep(0)
        clock.tick(watch, moment, 0.9)
    first, *others = reports(caplog)
    assert "of worker w was blocked for 1.01 s by code that kept the interpreter lock" in first["message"]
    last = "" if seen is None else "the workflow of run r (t) was seen before; "
    assert f"and was not seen; no step is in progress; {last}nothing else went on" in first["message"]
    assert first["run_id"] == (None if seen is None else "r")
    # Of the second nothing was seen before.
    assert len(others) == (0 if seen is None else 1)


def attempt_at(location: str, *, is_on_loop: bool = True) -> Attempt:
    operation: Any = SimpleNamespace(location=location, attempts=0)
    attempt = Attempt(operation, "r", 0, Host(), cast("Any", None), cast("Any", None))
    attempt.task = cast("Any", object()) if is_on_loop else None
    attempt._job = None if is_on_loop else cast("Any", object())
    return attempt


async def test_code_that_the_loop_executes_after_the_lock_was_kept_is_not_blamed(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    watch = clock.watch()
    monkeypatch.setattr(loop_watch, "_find_culprit", lambda *_: Culprit("later", "t"))
    clock.tick(watch, 0.01, 0.0)
    clock.now = 0.02
    watch._trace.note(attempt_at("too early"))
    clock.now = 1.0
    watch._trace.note(attempt_at("long"))
    watch._trace.note(attempt_at("after it"))
    clock.tick(watch, 1.01, 0.9)
    await asyncio.sleep(0)
    clock.tick(watch, 1.02, 0.0)
    [one] = reports(caplog)
    assert "was blocked for 1.00 s by code that kept the interpreter lock" in one["message"]
    assert "most likely by step long of run r, attempt 1;" in one["message"]
    # It is forgotten then.
    clock.tick(watch, 1.04, 0.0)
    clock.tick(watch, 3.0, 1.9)
    await asyncio.sleep(0)
    clock.tick(watch, 3.0, 0.0)
    assert " by the workflow of run later (t);" in reports(caplog)[1]["message"]


async def test_code_that_took_long_is_named_although_the_watch_was_late_before_it_began(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine, the thread of the watch may get no processor until then."""
    clock = Clock()
    watch = clock.watch()
    monkeypatch.setattr(loop_watch, "_find_culprit", lambda *_: None)
    clock.tick(watch, 0.01, 0.0)
    for moment, code in (
        (0.8, watch._trace),
        (0.81, attempt_at("short")),
        (0.82, watch._trace),
        (1.2, attempt_at("long")),
    ):
        clock.now = moment
        watch._trace.note(code)
    clock.tick(watch, 1.21, 0.9)
    [one] = reports(caplog)
    assert "most likely by step long of run r, attempt 1;" in one["message"]


async def test_short_code_is_not_blamed_for_a_watch_that_is_late(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    watch = clock.watch()
    monkeypatch.setattr(loop_watch, "_find_culprit", lambda *_: Culprit("later", "t"))
    clock.tick(watch, 0.01, 0.0)
    for moment, code in ((1.0, watch._trace), (1.01, attempt_at("short"))):
        clock.now = moment
        watch._trace.note(code)
    clock.tick(watch, 1.02, 0.9)
    [one] = reports(caplog)
    assert " and was not seen; no step is in progress;" in one["message"]


@pytest.mark.parametrize("of_loop", [True, False], ids=["on the loop", "in threads"])
async def test_a_step_that_left_no_trace_is_sought_among_those_in_progress(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, *, of_loop: bool
) -> None:
    """Whether threads or the loop executed it is seen by the CPU time of the loop's thread."""
    clock = Clock()
    clock.of_loop = of_loop
    monkeypatch.setattr(loop_watch, "_find_culprit", lambda *_: None)
    one_of_each = [attempt_at("a"), attempt_at("t", is_on_loop=False)]
    for attempts in (one_of_each, [attempt_at(f"s{n}", is_on_loop=of_loop) for n in range(5)]):
        watch = clock.watch(*attempts)
        clock.tick(watch, clock.now + 0.01, 0.0)
        clock.tick(watch, clock.now + 1.0, 0.9)
    first, second = reports(caplog)
    where = "code" if of_loop else "code in another thread"
    assert f" by {where} that kept the interpreter lock" in first["message"]
    assert f", most likely by step {'a' if of_loop else 't'} of run r, attempt 1;" in first["message"]
    names = ", ".join(f"step s{n} of run r, attempt 1" for n in range(3))
    assert f" and was not seen; 5 steps are in progress, such as {names}; nothing else" in second["message"]


def test_a_sample_shows_all_frames_of_a_thread_that_goes_on_meanwhile() -> None:
    """The frame of a coroutine that has ended does not lead to its caller: a sample taken in parts ends there."""

    def descend(depth: int) -> None:
        if depth:
            descend(depth - 1)

    async def step() -> None:
        descend(300)

    def work() -> None:
        while not over.is_set():
            with suppress(StopIteration):
                step().send(None)

    over = threading.Event()
    thread = threading.Thread(target=work)
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        thread.start()
        assert thread.ident is not None
        outermost = Counter(loop_watch._frames_of(thread.ident)[-1].f_code.co_name for _ in range(5000))
    finally:
        over.set()
        thread.join()
        sys.setswitchinterval(usual)
    assert outermost.keys() == {"_bootstrap"}
    assert loop_watch._frames_of(thread.ident) == []


async def test_code_of_the_user_outside_of_runs_is_logged_too(on_disk: Stage, caplog: pytest.LogCaptureFixture) -> None:
    @workflow("blocks.none.v1")
    async def idle(ctx: Context) -> None: ...

    engine = on_disk.engine(idle)
    async with engine.worker():
        one = await report_of(caplog, "by code outside of workflows and steps", lambda: asyncio.create_task(_hog()))
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
        one = await report_of(caplog, "by step ", lambda: result_of(engine, stepping()))
    assert one["location"] == "charge"


async def test_code_that_is_seen_only_after_the_lock_was_kept_is_a_likely_culprit(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sample may find Perdure's own code, which goes on after that of the user; then there is no stack to show."""
    clock = Clock()
    watch = clock.watch()
    monkeypatch.setattr(loop_watch, "_find_culprit", lambda *_: None)
    clock.tick(watch, 0.0, 0.0)
    monkeypatch.setattr(loop_watch, "_find_culprit", lambda *_: Culprit("r", "t"))
    monkeypatch.setattr(loop_watch, "_is_of_user", lambda _: False)
    clock.tick(watch, 1.0, 0.9)
    await asyncio.sleep(0)
    clock.tick(watch, 1.0, 0.0)
    [one] = reports(caplog)
    assert "by code that kept the interpreter lock" in one["message"]
    assert "most likely by the workflow of run r (t)" in one["message"]
    assert (one["run_id"], one["exc_text"]) == ("r", None)


async def test_a_watch_whose_thread_starts_late_blames_no_code(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    watch = clock.watch()
    clock.tick(watch, now=5.0, cpu=3.0)  # the CPU time of all imports before it
    clock.tick(watch, now=5.1, cpu=0.0)
    assert not reports(caplog)


async def test_a_process_that_was_suspended_has_blocked_nothing(
    on_disk: Stage, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watch is called late, and the process has used no CPU time meanwhile."""
    clock = Clock()
    caplog.set_level(logging.WARNING)
    watch = clock.watch()
    monkeypatch.setattr(loop_watch, "_find_culprit", lambda *_: Culprit("r", "t"))
    # This task runs, so the loop is busy and owes an answer.
    for moment, cpu in ((0.01, 0.0), (0.02, 0.0), (50.0, 0.0), (50.05, 0.05)):
        clock.tick(watch, moment, cpu)
    await asyncio.sleep(0)
    clock.tick(watch, clock.now, 0.0)
    assert reports(caplog) == []
    for moment, cpu in ((60.0, 0.01), (60.01, 0.01), (60.2, 0.19)):
        clock.tick(watch, moment, cpu)
    # A block that was too long before the process stood still is reported all the same.
    clock.tick(watch, 90.0, 0.0)
    [one] = reports(caplog)
    assert "was blocked for 0.20 s by the workflow of run r (t)" in one["message"]


async def test_a_block_that_ends_with_the_work_of_its_worker_is_in_the_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No sample follows it that would find the loop free."""
    clock = Clock()
    watch = clock.watch()
    monkeypatch.setattr(loop_watch, "_find_culprit", lambda *_: Culprit("r", "t"))
    for moment, cpu in ((0.01, 0.01), (0.02, 0.01), (0.12, 0.1), (0.13, 0.01)):
        clock.tick(watch, moment, cpu)
    await watch.stop()
    [one] = reports(caplog)
    assert "was blocked for 0.12 s by the workflow of run r (t)" in one["message"]


def test_no_garbage_is_collected_while_the_frames_of_threads_are_read() -> None:
    """A finalizer in between would let other threads run while the interpreter's list of threads is locked."""
    assert gc.isenabled()
    with without_collection():
        assert not gc.isenabled()
        other = threading.Thread(target=enter_without_collection)
        other.start()
        other.join(0.05)
        # A second thread that looked at the same time would turn the collector on too early.
        assert other.is_alive()
    other.join(60)
    assert gc.isenabled()
    # A fork in between would leave the child without a collector.
    with without_collection():
        forking = threading.Thread(target=lambda: os._exit(0) if (child := os.fork()) == 0 else os.waitpid(child, 0))
        forking.start()
        forking.join(0.05)
        assert forking.is_alive()
    forking.join(60)
    assert not forking.is_alive()
    gc.disable()
    try:
        enter_without_collection()
        assert not gc.isenabled()
    finally:
        gc.enable()


def enter_without_collection() -> None:
    with without_collection():
        pass
