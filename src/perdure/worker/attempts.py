"""One attempt at one step, on the worker's loop or in a thread."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from typing import Any

from perdure.core.errors import StepTimeout
from perdure.core.model import FAR
from perdure.core.system import Cancellable, System
from perdure.replay.operations import StepOperation
from perdure.worker.threads import Job, StepThreads
from perdure.workflow.current import StepInfo, current_step
from perdure.workflow.runtime import StepRequest

#: How long an async step may take to end after it was cancelled, before it is left behind.
CANCEL_PATIENCE = 5.0

#: Told the attempt, its result and its error.
OnEnd = Callable[["Attempt", Any, BaseException | None], None]


class Attempt:
    """A step's function being called. Ends exactly once: by returning, raising, timing out; never after `cancel`."""

    __slots__ = (
        "_job", "_on_end", "_over", "_pending", "_run_id", "_system", "_task", "_threads", "_timed_out",
        "number", "operation", "started_at",
    )  # fmt: skip

    def __init__(self, operation: StepOperation, run_id: str, now: int, system: System, on_end: OnEnd) -> None:
        self.operation = operation
        self.number = operation.attempts + 1
        self.started_at = now
        self._pending: tuple[Cancellable, ...] = ()
        self._run_id = run_id
        self._system = system
        self._on_end = on_end
        self._threads: StepThreads | None = None
        self._job: Job | None = None
        self._task: asyncio.Task[Any] | None = None
        self._over = False
        self._timed_out: StepTimeout | None = None

    def start(self, threads: StepThreads, run_deadline: int) -> None:
        """Call the function."""
        request = self.operation.request
        timeout = request.options.timeout if isinstance(request.options.timeout, float) else None
        due = min(run_deadline, FAR if timeout is None else self.started_at + int(timeout * 1e6))
        info = StepInfo(self._run_id, self.operation.location, self.number, due, self._is_over)
        if request.spec.is_async:
            self._spawn(_with_info(info, request))
        else:
            self._threads = threads
            self._job = threads.submit(lambda: _in_thread(info, request), self._thread_done)
        if timeout is not None:
            self._pending = (self._system.call_later(timeout, lambda: self._time_out(timeout)),)

    def _is_over(self) -> bool:
        return self._over

    def cancel(self) -> None:
        """Nobody wants the result any more."""
        self._close()
        self._stop()

    def _spawn(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._task = self._system.spawn(coroutine, self.operation.location)
        self._task.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Task[Any]) -> None:
        self._task = None  # its context leads back here: without the cycle it is freed at once
        cancelled = task.cancelled()
        error = None if cancelled else task.exception()
        if self._timed_out is not None:
            self._end(None, self._timed_out)
        elif cancelled:
            self._end(None, asyncio.CancelledError("the step was cancelled from inside"))
        elif error is not None:
            self._end(None, error.error if isinstance(error, _Exit) else error)
        else:
            self._end(task.result(), None)

    def _thread_done(self, result: Any, error: BaseException | None) -> None:
        self._job = None
        if error is None and inspect.isawaitable(result) and not self._over:
            self._spawn(_await(result))
        else:
            self._end(result, error)

    def _end(self, result: Any, error: BaseException | None) -> None:
        if self._over:
            return
        self._close()
        self._system.crash_point("step.returned")
        self._on_end(self, result, error)

    def _close(self) -> None:
        self._over = True
        for pending in self._pending:
            pending.cancel()

    def _time_out(self, timeout: float) -> None:
        error = StepTimeout(f"step {self.operation.location!r} took longer than its timeout of {timeout:g} s")
        if self._task is None:
            # The thread goes on; whatever it returns is not recorded.
            self._end(None, error)
            self._stop()
            return
        self._timed_out = error
        self._task.cancel()
        self._pending = (self._system.call_later(CANCEL_PATIENCE, lambda: self._end(None, error)),)

    def _stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
        elif self._job is not None and self._threads is not None:
            self._threads.abandon(self._job)


class _Exit(Exception):
    """A step's SystemExit or KeyboardInterrupt: a task hands those to whoever runs the loop, which would end the worker."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


async def _with_info(info: StepInfo, request: StepRequest) -> Any:
    current_step.set(info)
    try:
        return await request.spec.function(*request.args, **request.kwargs)
    except (SystemExit, KeyboardInterrupt) as error:
        raise _Exit(error) from None


async def _await(awaitable: Any) -> Any:
    try:
        return await awaitable
    except (SystemExit, KeyboardInterrupt) as error:
        raise _Exit(error) from None


def _in_thread(info: StepInfo, request: StepRequest) -> Any:
    current_step.set(info)
    return request.spec.function(*request.args, **request.kwargs)
