"""Threads for sync steps.

A thread cannot be stopped from outside. A step that timed out or was cancelled goes on in its thread, abandoned: its
result is ignored, another thread takes its place, and the process does not wait for it at exit.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import queue
import threading
from collections.abc import Callable
from typing import Any

from perdure.worker.steps.processes import StepProcesses

logger = logging.getLogger("perdure.worker")

#: Seconds without work after which a thread ends.
IDLE_SECONDS = 30.0

Done = Callable[[Any, BaseException | None], None]


class Job:
    """A function that runs, or is about to run, in a thread."""

    __slots__ = ("abandoned", "context", "done", "finished", "function", "loop", "started")

    def __init__(self, function: Callable[[], Any], done: Done) -> None:
        self.function = function
        self.done = done
        self.loop = asyncio.get_running_loop()
        self.context = contextvars.copy_context()
        self.started = False
        self.finished = False
        self.abandoned = False


class StepThreads:
    """Daemon threads, one for each sync step under way."""

    def __init__(self, limit: int, processes: int | None = None) -> None:
        """`limit`: abandoned threads from which no more runs are claimed. `processes`: as in `WorkerOptions`."""
        self._jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._lock = threading.Lock()
        #: Idle threads that no queued job counts on.
        self._idle = 0
        self._limit = limit
        self._abandoned = 0
        #: True if too many threads are busy with abandoned steps.
        self.clogged = limit <= 0
        #: For steps with `process=True`.
        self.processes = StepProcesses(processes)

    def submit(self, function: Callable[[], Any], done: Done) -> Job:
        """Run a function in a thread, in the caller's context; `done(result, error)` is called on the caller's loop."""
        job = Job(function, done)
        with self._lock:
            spare = self._idle > 0
            self._idle -= spare
            self._jobs.put(job)
        if not spare:
            threading.Thread(target=self._work, name="perdure step", daemon=True).start()
        return job

    def abandon(self, job: Job) -> None:
        """Ignore the result of a job from now on."""
        with self._lock:
            if not job.finished and not job.abandoned:
                job.abandoned = True
                if job.started:
                    self._count(1)

    def _work(self) -> None:
        while (job := self._next()) is not None:
            with self._lock:
                job.started = not job.abandoned
            if job.started:
                self._run(job)
            del job  # else the run stays in memory until this thread gets another job
            with self._lock:
                self._idle += 1

    def _next(self) -> Job | None:
        while True:
            try:
                return self._jobs.get(timeout=IDLE_SECONDS)
            except queue.Empty:
                with self._lock:
                    if self._jobs.empty():
                        self._idle -= 1
                        return None

    def _run(self, job: Job) -> None:
        result: Any = None
        error: BaseException | None = None
        try:
            result = job.context.run(job.function)
        except BaseException as raised:
            error = raised
        with self._lock:
            job.finished = True
            if job.abandoned:
                self._count(-1)
                return
        try:
            job.loop.call_soon_threadsafe(job.done, result, error)
        except RuntimeError:  # the loop was closed
            return

    def _count(self, change: int) -> None:
        before = self.clogged
        self._abandoned += change
        self.clogged = self._abandoned >= self._limit
        if self.clogged and not before:
            logger.error(
                "%d threads are busy with sync steps that were abandoned (a timeout, a cancellation); this worker "
                "claims no more runs until some of them return: such a step should check "
                "`step_info().is_cancelled()`, or bound its own waits",
                self._abandoned,
            )
        elif before and not self.clogged:
            logger.warning("threads of abandoned steps have returned; this worker claims runs again")
