from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import queue
import subprocess
import sys
import threading

import pytest

from perdure.core.system import DUE, CpuClock, LoopTrace, System
from perdure.host import Host, run_to_end
from tests.helpers import eventually


def test_the_host_is_a_system() -> None:
    host: System = Host()
    assert host.now() > 1_700_000_000_000_000
    assert 0 <= host.random() < 1
    assert len(host.entropy(16)) == 16
    assert host.entropy(16) != host.entropy(16)
    assert host.crash_point is None


def test_its_clock_never_steps_back() -> None:
    host = Host()
    readings = [host.monotonic() for _ in range(1000)]
    assert readings == sorted(readings)


async def test_tasks_carry_their_name_and_give_their_result() -> None:
    async def answer() -> int:
        return 42

    task = Host().spawn(answer(), "deep thought")
    assert task.get_name() == "deep thought"
    assert await task == 42


async def test_a_call_can_be_called_off() -> None:
    host, over = Host(), asyncio.Event()
    called: list[str] = []
    host.call_later(0, lambda: called.append("called off")).cancel()
    host.call_later(0.001, lambda: called.append("called off")).cancel()
    host.call_later(0.002, over.set)
    await over.wait()
    assert called == []


async def test_a_blocking_function_runs_on_a_daemon_thread_beside_the_loop() -> None:
    gate = threading.Event()

    def block() -> tuple[bool, bool]:
        gate.wait()
        return threading.current_thread().daemon, threading.current_thread() is threading.main_thread()

    answer = Host().in_thread(block)
    gate.set()
    assert await answer == (True, False)


async def test_threads_are_started_only_when_all_others_are_busy() -> None:
    host = Host()
    names = {await host.in_thread(threading.get_ident) for _ in range(50)}
    assert len(names) <= 2


def test_an_event_loop_ends_although_a_task_ignores_its_cancellation(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.host._TASK_PATIENCE", 0.01)
    tasks: list[asyncio.Task[None]] = []

    async def main() -> int:
        tasks.append(asyncio.create_task(nap(), name="nap"))
        await asyncio.sleep(0)
        return 7

    async def nap() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(3600)
        await go_on.wait()

    go_on = asyncio.Event()
    assert run_to_end(main()) == 7
    assert "the event loop ends without nap, which ignored a cancellation" in caplog.text
    go_on.set()
    loop = tasks[0].get_loop()
    loop.run_until_complete(tasks[0])
    loop.close()


def test_an_event_loop_whose_tasks_end_is_closed() -> None:
    async def main() -> asyncio.AbstractEventLoop:
        asyncio.create_task(asyncio.sleep(3600))  # noqa: RUF006 - it is forgotten on purpose
        return asyncio.get_running_loop()

    assert run_to_end(main()).is_closed()


async def test_idle_threads_end_and_later_functions_get_others() -> None:
    host, gate = Host(), threading.Event()
    busy = asyncio.ensure_future(host.in_thread(gate.wait))
    idle = await host.in_thread(threading.current_thread)
    host.end_idle_threads()
    idle.join()
    assert await host.in_thread(threading.current_thread) is not idle
    gate.set()
    assert await busy


async def test_a_busy_thread_ends_after_its_function_if_threads_are_to_end() -> None:
    host, gate, began = Host(), threading.Event(), threading.Event()
    seen: list[threading.Thread] = []

    def block() -> None:
        seen.append(threading.current_thread())
        began.set()
        gate.wait()

    busy = asyncio.ensure_future(host.in_thread(block))
    await asyncio.to_thread(began.wait)
    host.end_idle_threads()
    gate.set()
    await busy
    seen[0].join()
    assert await host.in_thread(lambda: 1) == 1


async def test_blocked_functions_do_not_hold_up_each_other() -> None:
    host, barrier = Host(), threading.Barrier(8)
    places = await asyncio.gather(*(host.in_thread(barrier.wait) for _ in range(8)))
    assert sorted(places) == list(range(8))


async def test_more_functions_than_threads_all_get_their_turn() -> None:
    host = Host()
    answers = await asyncio.gather(*(host.in_thread(functools.partial(pow, n, 2)) for n in range(500)))
    assert answers == [n * n for n in range(500)]


async def test_an_error_in_a_thread_is_raised_where_it_is_awaited() -> None:
    def fail() -> None:
        raise LookupError("gone")

    with pytest.raises(LookupError, match="gone"):
        await Host().in_thread(fail)


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
async def test_no_error_kills_the_thread_that_others_need(error: BaseException) -> None:
    host = Host()

    def fail() -> None:
        raise error

    async def outcome() -> BaseException | None:
        answer = asyncio.ensure_future(host.in_thread(fail))
        await asyncio.wait([answer])
        return answer.exception()

    assert await outcome() is error
    assert await host.in_thread(lambda: 1) == 1


async def test_a_generator_exit_does_not_close_the_coroutine_that_awaits_it() -> None:
    def fail() -> None:
        raise GeneratorExit

    with pytest.raises(RuntimeError, match="GeneratorExit") as caught:
        await Host().in_thread(fail)
    assert isinstance(caught.value.__cause__, GeneratorExit)


async def test_a_stop_iteration_does_not_end_the_coroutine_that_awaits_it() -> None:
    def fail() -> object:
        return next(iter(()))

    with pytest.raises(RuntimeError, match="StopIteration") as caught:
        await Host().in_thread(fail)
    assert isinstance(caught.value.__cause__, StopIteration)


async def test_giving_up_on_an_answer_leaves_the_function_running_and_harms_no_other_call() -> None:
    host, gate, done = Host(), threading.Event(), queue.SimpleQueue[str]()
    problems: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))

    def block() -> None:
        gate.wait()
        done.put("done")

    answer = asyncio.ensure_future(host.in_thread(block))
    answer.cancel()
    gate.set()
    assert await host.in_thread(lambda: done.get(timeout=60)) == "done"
    await host.in_thread(lambda: None)
    assert answer.cancelled()
    assert not problems


def test_an_answer_after_the_end_of_its_loop_is_dropped() -> None:
    host, gate, over = Host(), threading.Event(), threading.Event()

    def block() -> None:
        gate.wait()

    async def main() -> None:
        host.in_thread(block)

    asyncio.run(main())
    gate.set()

    async def after() -> None:
        await host.in_thread(over.set)

    asyncio.run(after())
    assert over.is_set()


async def test_the_background_has_a_thread_and_a_loop_of_its_own() -> None:
    seen: queue.SimpleQueue[tuple[str, bool, bool]] = queue.SimpleQueue()
    loop = asyncio.get_running_loop()

    async def main() -> None:
        thread = threading.current_thread()
        seen.put((thread.name, thread.daemon, asyncio.get_running_loop() is loop))

    background = Host().background(main, "heartbeat")
    assert seen.get(timeout=60) == ("heartbeat", True, False)
    await background.stop()


async def test_the_background_goes_on_while_the_main_loop_is_blocked() -> None:
    beats: queue.SimpleQueue[int] = queue.SimpleQueue()

    async def main() -> None:
        for beat in range(1_000_000):
            beats.put(beat)
            await asyncio.sleep(0)

    background = Host().background(main, "heartbeat")
    assert [beats.get(timeout=60) for _ in range(100)] == list(range(100))
    await background.stop()


async def test_stopping_cancels_what_runs_there_and_waits_for_its_cleanup() -> None:
    log: list[str] = []
    started = threading.Event()

    async def main() -> None:
        try:
            started.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            log.append("cleaned up")

    background = Host().background(main, "heartbeat")
    started.wait()
    await asyncio.gather(background.stop(), background.stop())
    assert log == ["cleaned up"]
    await background.stop()


async def test_stopping_at_once_ends_it_whether_it_has_started_or_not() -> None:
    ends: list[str] = []

    async def main() -> None:
        ends.append("begun")
        try:
            await asyncio.Event().wait()
        finally:
            ends.append("ended")

    for _ in range(50):
        await Host().background(main, "heartbeat").stop()
        assert ends in ([], ["begun", "ended"])
        ends.clear()


async def test_cancelling_the_wait_for_the_end_does_not_prevent_it() -> None:
    gate = threading.Event()

    async def main() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            gate.wait()

    background = Host().background(main, "heartbeat")
    impatient = asyncio.ensure_future(background.stop())
    await asyncio.sleep(0)
    impatient.cancel()
    gate.set()
    await background.stop()
    assert impatient.cancelled()


async def test_an_error_there_is_logged_and_stopping_still_works(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        raise LookupError("gone")

    background = Host().background(main, "heartbeat")
    await background.stop()

    def logged() -> bool:
        return any("heartbeat failed" in record.getMessage() for record in caplog.records)

    with caplog.at_level(logging.ERROR):
        other = Host().background(main, "heartbeat")
        await eventually(logged, saying="the log")
        await other.stop()


def test_a_process_ends_without_waiting_for_threads_that_block() -> None:
    script = (
        "import asyncio, threading\n"
        "from perdure.host import Host\n"
        "host = Host()\n"
        "async def forever(): await asyncio.Event().wait()\n"
        "async def main():\n"
        "    started = threading.Event()\n"
        "    host.in_thread(lambda: (started.set(), threading.Event().wait()))\n"
        "    host.background(forever, 'heartbeat')\n"
        "    started.wait()\n"
        "    print('end', flush=True)\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert (done.stdout, done.stderr) == ("end\n", "")


def test_no_object_is_watched_for_forks_when_the_interpreter_ends() -> None:
    """A weak reference that is left then calls back into modules that are gone, and prints an error."""
    program = (
        "import atexit\n"
        # Called last, because it is registered first.
        "atexit.register(lambda: print(len(process_fork._watched)))\n"
        "from perdure.core import process_fork\n"
        "class Watcher:\n"
        "    def at_fork(self): ...\n"
        "watcher = Watcher()\n"
        "process_fork.watch_forks(watcher.at_fork)\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert (ran.stdout, ran.stderr) == ("0\n", "")


async def test_a_ticker_marks_the_end_of_its_wait_and_a_stopped_one_marks_nothing() -> None:
    trace = LoopTrace(Host.monotonic)
    calls: list[int] = []
    go_on = threading.Event()

    def tick(clock: CpuClock) -> float:
        process, thread = clock()
        assert process >= thread > 0
        calls.append(trace.waiting[DUE])
        return 0.001 if len(calls) < 3 or go_on.wait(60) else 0.0

    ticker = Host().ticker(tick, "a ticker", trace)
    await eventually(lambda: len(calls) == 3)
    # Cleared when each wait has ended.
    assert calls == [0, 0, 0]
    trace.note("late")
    assert trace.take()[0] == "late"
    trace.note("late")
    await ticker.stop()
    go_on.set()
    await eventually(lambda: trace.waiting[DUE])
    assert trace.take()[0] is None


async def test_a_ticker_that_fails_ends_and_marks_nothing(caplog: pytest.LogCaptureFixture) -> None:
    trace = LoopTrace(Host.monotonic)

    def tick(clock: CpuClock) -> float:
        raise LookupError("no tick")

    Host().ticker(tick, "a failing ticker", trace)
    await eventually(lambda: "the thread a failing ticker failed and ends" in caplog.text)
    await eventually(lambda: trace.waiting[DUE])
