"""The real `System`: clocks, randomness, event loop and threads of this machine.

No other module of the engine touches them. The threads are daemons: the process never waits for a blocking call in
order to exit.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import ctypes
import errno
import logging
import os
import queue
import random
import threading
import time
from asyncio.events import _get_running_loop
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from math import ceil, inf
from typing import Any, TypeVar

from perdure.core.process_fork import watch_forks
from perdure.core.system import DUE, Background, Cancellable, CpuClock, CrashPoint, FileWatch, LoopTrace, Ticker
from perdure.core.telemetry import Telemetry

T = TypeVar("T")

_log = logging.getLogger("perdure.host")

_THREADS = 32
_IDLE_SECONDS = 30.0

#: On Linux, CLOCK_MONOTONIC stops while the machine is suspended, so a lease would seem to last through the night.
_BOOTTIME: int | None = getattr(time, "CLOCK_BOOTTIME", None)
_monotonic = time.monotonic if _BOOTTIME is None else partial(time.clock_gettime, _BOOTTIME)


class Host:
    """The system outside of tests. A clock, or a source of randomness, is the function of the standard library."""

    #: Seconds of a clock that never steps back and, if the machine has such a clock, counts its sleep.
    monotonic = staticmethod(_monotonic)
    #: Random bytes of the operating system.
    entropy = staticmethod(os.urandom)
    #: A random number in [0, 1): jitter is no secret.
    random = staticmethod(random.random)
    crash_point: CrashPoint | None = None

    def __init__(self) -> None:
        self._threads = _Threads()
        self.telemetry = Telemetry()

    def now(self) -> int:
        """Return the wall-clock time in microseconds since the epoch, UTC."""
        return time.time_ns() // 1000

    async def sleep(self, seconds: float) -> None:
        """Sleep for so many seconds."""
        await asyncio.sleep(seconds)

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Cancellable:
        """Call back on the running event loop after so many seconds."""
        return asyncio.get_running_loop().call_later(seconds, callback)

    def spawn(self, coroutine: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Run a coroutine as a task of the running event loop."""
        return asyncio.get_running_loop().create_task(coroutine, name=name)

    def in_thread(self, function: Callable[[], T]) -> Awaitable[T]:
        """Run a blocking function in a thread of a small pool. Cancelling the future does not stop the function."""
        return self._threads.submit(function)

    def end_idle_threads(self) -> None:
        """End the threads of the pool that wait for a blocking function, and the others after their present one."""
        self._threads.end_idle()

    def background(self, main: Callable[[], Coroutine[Any, Any, None]], name: str) -> Background:
        """Run a coroutine on a thread and an event loop of its own."""
        return _Thread(main, name)

    def ticker(self, tick: Callable[[CpuClock], float], name: str, trace: LoopTrace) -> Ticker:
        """Call a function again and again from a thread of its own."""
        return _Ticker(tick, name, trace)

    def watch_file(self, path: str, written: Callable[[], object]) -> FileWatch | None:
        """Watch a file with inotify; None where the operating system has none, or has no watches left."""
        try:
            return InotifyWatch(path, written)
        except (OSError, AttributeError, NotImplementedError) as error:
            # Another system than Linux, or an event loop that watches no files.
            _log.info("%s is polled, because it cannot be watched: %s", path, error)
            return None


#: Flags of inotify: opened without blocking and closed by exec; one event for a write, a rename, a deletion, or
#: the removal of a name.
_INOTIFY_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC if hasattr(os, "O_CLOEXEC") else 0
_WRITTEN_ONCE = 0x2 | 0x4 | 0x400 | 0x800 | 0x80000000
_EVENTS = 4096


class InotifyWatch:
    """A watch of one file, with inotify. Raises `OSError` or `AttributeError` where there is none.

    The kernel sees the writes of all processes of this machine, whatever program they run. Nothing is left behind by a
    process that dies.
    """

    def __init__(self, path: str, written: Callable[[], object]) -> None:
        self._path = os.fsencode(path)
        self._written = written
        self._library = ctypes.CDLL(None, use_errno=True)
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._descriptor: int = self._library.inotify_init1(_INOTIFY_FLAGS)
        if self._descriptor < 0:
            raise OSError(ctypes.get_errno(), "inotify has no instances left")
        try:
            self._loop.add_reader(self._descriptor, self._read)
        except BaseException:
            os.close(self._descriptor)
            raise

    def arm(self) -> bool:
        """Call back once, after the next write to the file; False if it is not there. Raises `OSError`."""
        with self._lock:
            if self._descriptor < 0 or self._process != os.getpid():
                return False
            if self._library.inotify_add_watch(self._descriptor, self._path, _WRITTEN_ONCE) >= 0:
                return True
            number = ctypes.get_errno()
        if number == errno.ENOENT:
            return False
        raise OSError(number, os.strerror(number))

    def close(self) -> None:
        """Watch no more. From any thread."""
        with self._lock:
            descriptor, self._descriptor = self._descriptor, -1
        if descriptor < 0 or self._process != os.getpid():
            return
        try:
            if _get_running_loop() is self._loop:
                self._end(descriptor)
            else:
                self._loop.call_soon_threadsafe(self._end, descriptor)
        except RuntimeError:
            os.close(descriptor)  # the loop is closed

    def _end(self, descriptor: int) -> None:
        self._loop.remove_reader(descriptor)
        os.close(descriptor)

    def _read(self) -> None:
        try:
            os.read(self._descriptor, _EVENTS)
        except OSError:
            return
        self._written()


class _Threads:
    """A pool of daemon threads, started on demand and ended when idle. A forked child begins with none."""

    def __init__(self) -> None:
        self._begin()
        watch_forks(self._after_fork_in_child)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        #: None ends the thread that gets it.
        self._jobs: queue.SimpleQueue[Callable[[], Callable[[], None]] | None] = queue.SimpleQueue()
        self._threads = 0
        self._unfinished = 0
        #: Whether a thread that has nothing to do waits for another job.
        self._waits = True

    def _after_fork_in_child(self) -> None:
        self._begin()

    def submit(self, function: Callable[[], T]) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        with self._lock:
            if self._unfinished >= self._threads < _THREADS:
                threading.Thread(target=self._work, name="perdure-thread", daemon=True).start()
                self._threads += 1
            self._unfinished += 1
            self._waits = True
            self._jobs.put(lambda: _call(function, answer, loop))
        return answer

    def end_idle(self) -> None:
        with self._lock:
            self._waits = False
            for _ in range(self._threads - self._unfinished):
                self._threads -= 1
                self._jobs.put(None)

    def _work(self) -> None:
        while True:
            try:
                job = self._jobs.get(timeout=_IDLE_SECONDS)
            except queue.Empty:
                with self._lock:
                    if self._jobs.empty():
                        self._threads -= 1
                        return
                continue
            if job is None:
                return
            deliver = job()
            # Free before the answer is delivered: the caller may submit again at once, and then needs no further
            # thread.
            with self._lock:
                self._unfinished -= 1
                ends = not self._waits and self._jobs.empty()
                self._threads -= ends
            deliver()
            if ends:
                return
            # An idle thread holds no reference to its last job.
            del job, deliver


def _call(function: Callable[[], T], answer: asyncio.Future[T], loop: asyncio.AbstractEventLoop) -> Callable[[], None]:
    try:
        result = function()
    except BaseException as error:
        failure = _raisable(error)
        return lambda: _deliver(loop, _fail, answer, failure)
    return lambda: _deliver(loop, _succeed, answer, result)


def _raisable(error: BaseException) -> BaseException:
    if not isinstance(error, StopIteration | GeneratorExit):
        return error
    # A future refuses a StopIteration, which would end the coroutine that awaits it; a GeneratorExit would close it.
    substitute = RuntimeError(f"a function in a thread raised {type(error).__name__}")
    substitute.__cause__ = error
    return substitute


def _succeed(answer: asyncio.Future[T], result: T) -> None:
    if not answer.done():
        answer.set_result(result)


def _fail(answer: asyncio.Future[Any], error: BaseException) -> None:
    if not answer.done():
        answer.set_exception(error)


def _deliver(loop: asyncio.AbstractEventLoop, callback: Callable[..., object], *args: Any) -> None:
    try:
        loop.call_soon_threadsafe(callback, *args)
    except RuntimeError:
        # The loop was closed, so nothing waits for the answer.
        _log.debug("the event loop was closed before a thread's answer came")
    except BaseException:
        # The thread serves other callers, too.
        _log.exception("a thread's answer could not be delivered to its event loop")


class _Thread(Background):
    """A coroutine on a thread and an event loop of its own."""

    def __init__(self, main: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        self._main = main
        self._name = name
        self._lock = threading.Lock()
        self._stopping = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._ended: concurrent.futures.Future[None] = concurrent.futures.Future()
        # A running future cannot be cancelled, so a caller that stops waiting does not stop others from waiting.
        self._ended.set_running_or_notify_cancel()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    async def stop(self) -> None:
        """Cancel the coroutine and wait for its end."""
        with self._lock:
            first, self._stopping = not self._stopping, True
            # Cancel once: a second cancellation would interrupt the cleanup.
            if first and self._loop is not None and self._task is not None:
                _deliver(self._loop, self._task.cancel)
        await asyncio.wrap_future(self._ended)

    def _run(self) -> None:
        try:
            asyncio.run(self._supervise())
        except BaseException:
            _log.exception("the background thread %s failed", self._name)
        finally:
            self._ended.set_result(None)

    async def _supervise(self) -> None:
        with self._lock:
            if self._stopping:
                return
            self._loop = asyncio.get_running_loop()
            self._task = self._loop.create_task(self._main(), name=self._name)
        try:
            await self._task
        except asyncio.CancelledError:
            if not self._stopping:
                raise


class _PollFd(ctypes.Structure):
    """`struct pollfd` of the C library."""

    _fields_ = (("fd", ctypes.c_int), ("events", ctypes.c_short), ("revents", ctypes.c_short))


assert _PollFd.revents.offset == DUE
#: `poll` of the C library. Unlike a wait of the standard library, it writes to memory when it ends, before its caller
#: has the interpreter lock again. Windows has none.
_poll = ctypes.CDLL(None).poll if os.name == "posix" else None


class _Ticker(Ticker):
    """A thread that calls a function, each time after the seconds that it returned."""

    def __init__(self, tick: Callable[[CpuClock], float], name: str, trace: LoopTrace) -> None:
        self._tick = tick
        self._name = name
        self._trace = trace
        self._stopping = False
        #: Ends a rest.
        self._woken = threading.Event()
        self._clock = _cpu_clock()
        # Of no file: `poll` waits for the time to pass.
        trace.waiting = self._waiting = bytearray(_PollFd(fd=-1))
        threading.Thread(target=self._run, name=name, daemon=True).start()

    async def stop(self) -> None:
        """End the thread after its present wait."""
        self._stopping = True
        self._woken.set()

    def wake(self) -> None:
        """Go on after a rest. The next call is due at once, as after a wait."""
        self._waiting[DUE] = 0
        self._woken.set()

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._wait(self._tick(self._clock))
        except Exception:
            _log.exception("the thread %s failed and ends", self._name)
        finally:
            self._trace.end()

    def _wait(self, seconds: float) -> None:
        waiting = self._waiting
        if seconds == inf:
            waiting[DUE] = 1
            if self._woken.is_set():  # before the line above
                waiting[DUE] = 0
            self._woken.wait()
            self._woken.clear()
            return
        wait: Callable[[], object] = partial(time.sleep, seconds)
        if _poll is not None:
            wait = partial(_poll, ctypes.byref(_PollFd.from_buffer(waiting)), 1, ceil(seconds * 1000))
        # The interpreter lock changes hands only at calls and jumps, so no other thread runs between these lines.
        waiting[DUE] = 1
        wait()


def _cpu_clock() -> CpuClock:
    """Clock for this process and the calling thread. Without a clock for that thread, the process counts for it."""
    if not hasattr(time, "pthread_getcpuclockid"):
        return lambda: (time.process_time(), time.process_time())
    of_thread = time.pthread_getcpuclockid(threading.get_ident())

    def read() -> tuple[float, float]:
        try:
            return time.process_time(), time.clock_gettime(of_thread)
        except OSError:  # the thread has ended
            return time.process_time(), 0.0

    return read


#: Seconds in which tasks may end after they were cancelled.
_TASK_PATIENCE = 2.0


def run_to_end(main: Coroutine[Any, Any, T], loop: Callable[[], asyncio.AbstractEventLoop] | None = None) -> T:
    """Run a worker on a new event loop; at the end, do not wait for tasks that ignore their cancellation.

    `asyncio.run` would wait for them for ever, so one such step would keep the process.
    """
    runner = asyncio.Runner(loop_factory=loop)
    try:
        return runner.run(main)
    finally:
        left = _cancel_tasks(runner.get_loop())
        if left:
            names = ", ".join(sorted(task.get_name() for task in left))
            _log.warning("the event loop ends without %s, which ignored a cancellation", names)
            # Python reports unfinished tasks once more when it ends.
            runner.get_loop().set_exception_handler(lambda loop, context: None)
        else:
            runner.close()


def _cancel_tasks(loop: asyncio.AbstractEventLoop) -> set[asyncio.Task[Any]]:
    """Cancel the tasks of a loop; return those that do not end."""
    tasks = asyncio.all_tasks(loop)
    if not tasks:
        return set()
    for task in tasks:
        task.cancel()
    return loop.run_until_complete(asyncio.wait(tasks, timeout=_TASK_PATIENCE))[1]
