"""One thing at a time, in order, off the event loop.

A lane runs the jobs of one connection on a thread that it borrows when there is work and gives back after a moment without.
Jobs may come from any number of event loops; each answer goes to the loop that asked. An asker that is cancelled stops
waiting, and its job is done all the same. An inline lane runs each job at once, on the caller's own thread.
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

#: For how many seconds the thread waits for another job before it goes.
_LINGER = 0.05
#: For how many seconds a job waits for somebody who has the connection to himself.
_LONGEST = 30.0

_Job = tuple[Callable[[], Any], asyncio.AbstractEventLoop, asyncio.Future[Any]]


class SerialThread:
    """A queue of jobs and at most one thread that works on them."""

    def __init__(self, system: System, *, inline: bool, idle: Callable[[], object]) -> None:
        self._system = system
        self._inline = inline
        self._idle = idle
        self._jobs: deque[_Job] = deque()
        self._changed = threading.Condition(threading.Lock())
        self._using = threading.RLock()
        self._manned = False
        self._unfinished = 0
        self._thread: Awaitable[None] | None = None

    async def run(self, work: Callable[[], T], *, urgent: bool = False) -> T:
        """Do it after whatever was asked before; an urgent job goes first."""
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
            if self._manned:
                self._changed.notify()
            else:
                self._man()
        return await answer

    @contextmanager
    def held(self) -> Generator[None]:
        """The connection for this thread alone; no job is done meanwhile."""
        if not self.hold(_LONGEST):
            raise StoreUnavailable(
                "A transaction has kept the database to itself for too long. Inside of its function, use the connection that it "
                "was given, `connection=...`, for whatever else is written."
            )
        try:
            yield
        finally:
            self.release()

    def hold(self, seconds: float) -> bool:
        """Take the connection for this thread alone, until `release`; False if it is not free within that time."""
        return self._using.acquire(timeout=seconds)

    def release(self) -> None:
        """Give the connection back."""
        self._using.release()

    @property
    def queue(self) -> int:
        """How many jobs are waiting or under way."""
        return self._unfinished

    def _man(self) -> None:
        self._manned = True
        try:
            self._thread = asyncio.ensure_future(self._system.in_thread(self._serve))
        except BaseException:
            self._manned = False
            raise

    def _serve(self) -> None:
        while True:
            with self._changed:
                if not self._jobs:
                    self._changed.wait(_LINGER)
                if not self._jobs:
                    self._manned = False
                    self._rest()
                    return
                work, loop, answer = self._jobs.popleft()
            value, error = self._attempt(work)
            with self._changed:
                self._unfinished -= 1
            _deliver(loop, answer, value, error)
            del work, loop, answer, value, error

    def _rest(self) -> None:
        try:
            self._idle()
        except Exception:
            _log.exception("a connection without work could not be put to rest")

    def _attempt(self, work: Callable[[], Any]) -> tuple[Any, BaseException | None]:
        try:
            with self.held():
                return work(), None
        except BaseException as error:
            return None, error


def _deliver(
    loop: asyncio.AbstractEventLoop, answer: asyncio.Future[Any], value: Any, error: BaseException | None
) -> None:
    """Hand an answer to its loop. Never raises: the thread serves other loops, too."""
    try:
        loop.call_soon_threadsafe(_settle, answer, value, error)
    except RuntimeError:
        # A closed loop has no task left that waits.
        _log.debug("the event loop was closed before the answer of the database came")
    except BaseException:
        _log.exception("the answer of the database could not be delivered to its event loop")


def _settle(answer: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    if answer.done():
        return
    if error is not None:
        answer.set_exception(error)
    else:
        answer.set_result(value)
