"""A thread that runs the jobs of one connection, one at a time and in order.

The thread is taken from the system when there is work and returned shortly after the last job. Jobs may come from any
number of event loops; each result goes to the loop of its caller. A cancelled caller stops waiting, but its job still
runs. An inline `SerialThread` runs each job at once, on the caller's own thread.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import Any, TypeVar

from perdure.core.system import System
from perdure.errors import StoreUnavailable

T = TypeVar("T")

_log = logging.getLogger("perdure.store")

#: Seconds that the thread waits for another job before it ends.
_IDLE_SECONDS = 0.05
#: Seconds that a job waits while another thread holds the connection.
_HOLD_SECONDS = 30.0

_Job = tuple[Callable[[], Any], asyncio.AbstractEventLoop, asyncio.Future[Any]]


class SerialThread:
    """A queue of jobs, and at most one thread that runs them."""

    def __init__(self, system: System, *, inline: bool, idle: Callable[[], object]) -> None:
        self._system = system
        self._inline = inline
        self._idle = idle
        self._jobs: deque[_Job] = deque()
        self._changed = threading.Condition(threading.Lock())
        self._connection_lock = threading.RLock()
        self._has_thread = False
        self._unfinished = 0
        self._thread: Awaitable[None] | None = None

    async def run(self, work: Callable[[], T], *, urgent: bool = False) -> T:
        """Run a job after those that are queued, or before them if it is urgent."""
        if self._inline:
            with self.held():
                return work()
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        with self._changed:
            self._unfinished += 1
            if urgent:
                self._jobs.appendleft((work, loop, answer))
            else:
                self._jobs.append((work, loop, answer))
            if self._has_thread:
                self._changed.notify()
            else:
                self._start_thread()
        return await answer

    @contextmanager
    def held(self) -> Generator[None]:
        """Hold the connection for the calling thread; no job runs meanwhile."""
        if not self.hold(_HOLD_SECONDS):
            raise StoreUnavailable(
                "a transaction has kept the database to itself for too long; inside of its function, pass its "
                "connection as `connection=...` to whatever else writes"
            )
        try:
            yield
        finally:
            self.release()

    def hold(self, seconds: float) -> bool:
        """Take the connection for the calling thread, until `release`; False if it is not free in time."""
        return self._connection_lock.acquire(timeout=seconds)

    def release(self) -> None:
        """Give the connection back."""
        self._connection_lock.release()

    @property
    def unfinished(self) -> int:
        """Number of jobs that wait or run."""
        return self._unfinished

    def _start_thread(self) -> None:
        self._has_thread = True
        try:
            self._thread = asyncio.ensure_future(self._system.in_thread(self._run_jobs))
        except BaseException:
            self._has_thread = False
            raise

    def _run_jobs(self) -> None:
        while True:
            with self._changed:
                if not self._jobs:
                    self._changed.wait(_IDLE_SECONDS)
                if not self._jobs:
                    self._has_thread = False
                    self._become_idle()
                    return
                work, loop, answer = self._jobs.popleft()
            value, error = self._attempt(work)
            with self._changed:
                self._unfinished -= 1
            _deliver(loop, answer, value, error)
            del work, loop, answer, value, error

    def _become_idle(self) -> None:
        try:
            self._idle()
        except Exception:
            _log.exception("the idle callback of a connection failed")

    def _attempt(self, work: Callable[[], Any]) -> tuple[Any, BaseException | None]:
        try:
            with self.held():
                return work(), None
        except BaseException as error:
            return None, error


def _deliver(
    loop: asyncio.AbstractEventLoop, answer: asyncio.Future[Any], value: Any, error: BaseException | None
) -> None:
    """Deliver a result to its event loop. Never raises, because the thread serves other loops, too."""
    try:
        loop.call_soon_threadsafe(_settle, answer, value, error)
    except RuntimeError:
        # No task of a closed loop waits for the result.
        _log.debug("the event loop was closed before the result of the database came")
    except BaseException:
        _log.exception("the result of the database could not be delivered to its event loop")


def _settle(answer: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    if answer.done():
        return
    if error is not None:
        answer.set_exception(error)
    else:
        answer.set_result(value)
