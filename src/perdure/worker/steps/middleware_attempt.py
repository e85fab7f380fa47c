"""Attempts at steps and activities with middleware around the function.

`async def` methods run on the worker's loop, also around a function that runs in a thread or a process. `def` methods
that are further in than all of these run in the thread of such a function.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, Protocol, cast

from msgspec import UNSET
from msgspec.structs import replace

from perdure.core.middleware import (
    Invocation,
    LateCall,
    Layer,
    Layers,
    Next,
    awaitable,
    split,
    surround,
    surround_blocking,
)
from perdure.core.model.run import Run
from perdure.worker.services import AttemptMakers
from perdure.worker.steps.activity_attempt import ActivityAttempt
from perdure.worker.steps.attempt import Attempt, call_function
from perdure.worker.steps.threads import StepThreads
from perdure.worker.steps.transaction_attempt import TransactionAttempt
from perdure.workflow.runtime import StepRequest
from perdure.workflow.step import StepInfo, current_step


def attempt_makers(layers: Layers) -> AttemptMakers:
    """Return the makers of attempts with middleware around the function, where there is some."""
    step, activity = layers.step, layers.activity
    return AttemptMakers(
        partial(MiddlewareAttempt, step) if step else Attempt,
        partial(MiddlewareActivityAttempt, activity) if activity else ActivityAttempt,
        partial(MiddlewareTransactionAttempt, layers) if step else TransactionAttempt,
    )


Kind = Literal["step", "activity"]


class HeldRow(Protocol):
    """A held run, as the middleware sees it."""

    run: Run


class SurroundedAttempt(Attempt):
    """A call of a function with middleware around it."""

    has_begin = False
    kind: Kind = "step"
    #: Outermost first; set by the subclasses.
    _layers: tuple[Layer, ...]

    def start(self, threads: StepThreads, run_deadline: int) -> None:
        """Call the middleware, and in it the function."""
        request = self.operation.request.copied()
        timeout = request.options.timeout
        due = run_deadline if timeout is UNSET else min(run_deadline, self.started_at + int(timeout * 1e6))
        info, call = self._info(due), _invocation(self.kind, self, request)
        in_process = request.options.process is True
        outer, inner = (self._layers, ()) if request.spec.is_async or in_process else split(self._layers)
        function = partial(call_function, request.spec.function)
        if outer or in_process:
            innermost: Next = function
            if in_process:
                innermost = partial(self._in_process, threads, request, info)
            elif not request.spec.is_async:
                innermost = partial(self._in_thread, threads, surround_blocking(inner, function))
            self.task = self._system.spawn(
                self.run(info, LateCall(surround(outer, innermost), call)), self.operation.location
            )
        else:
            self._threads = threads
            blocking = surround_blocking(inner, function)
            self._job = threads.submit(
                partial(_call_in_thread, info, blocking, call), lambda *end: self._thread_done(info, *end)
            )
        if timeout is not UNSET and not in_process:
            self.pending = self._system.call_later(timeout, lambda: self._time_out(timeout))

    async def _in_thread(self, threads: StepThreads, function: Next, call: Invocation) -> Any:
        self.waits_for_thread = True
        try:
            result = await _job_of(threads, partial(function, call))
            return await result if inspect.isawaitable(result) else result
        finally:
            self.waits_for_thread = False

    async def _in_process(self, threads: StepThreads, request: StepRequest, info: StepInfo, call: Invocation) -> Any:
        loop, timeout = asyncio.get_running_loop(), request.options.timeout

        def begun() -> None:
            if timeout is not UNSET:
                loop.call_soon_threadsafe(self._limit, timeout)

        process = threads.processes.call(replace(request, args=call.args, kwargs=call.kwargs), info, begun)
        try:
            return await _job_of(threads, process.run)
        except asyncio.CancelledError:
            process.kill()
            raise


class MiddlewareAttempt(SurroundedAttempt):
    """A call of a step's function with middleware around it."""

    def __init__(self, layers: tuple[Layer, ...], *arguments: Any) -> None:
        super().__init__(*arguments)
        self._layers = layers


class MiddlewareActivityAttempt(SurroundedAttempt, ActivityAttempt):
    """A call of an activity's function with middleware around it."""

    kind = "activity"

    def __init__(self, layers: tuple[Layer, ...], *arguments: Any) -> None:
        ActivityAttempt.__init__(self, *arguments)
        self._layers = layers


class MiddlewareTransactionAttempt(TransactionAttempt):
    """A call of a transaction step's function with middleware around it, inside of the transaction."""

    def __init__(self, layers: Layers, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._layers = layers.step
        self._replaces = layers.replaces

    def opener(self) -> Callable[[], Any] | None:
        """Return what opens the user's connection; nothing does if the step is replaced."""
        if self._replaces is not None and self._replaces(_invocation("step", self, self.operation.request)):
            return None
        return super().opener()

    def _call_function(self, connection: Any, request: StepRequest) -> Any:
        call = _invocation("step", self, request)
        innermost = partial(call_function, partial(request.spec.function, connection))
        if request.spec.is_async:
            return surround(self._layers, innermost)(call)
        outer, inner = split(self._layers)
        blocking = surround_blocking(inner, innermost)
        return surround(outer, awaitable(blocking))(call) if outer else blocking(call)


def _invocation(kind: Kind, attempt: Attempt, request: StepRequest) -> Invocation:
    run = cast("HeldRow", attempt.recipient).run
    return Invocation(
        kind=kind, run_id=run.id, type=run.type, location=attempt.operation.location, attempt=attempt.number,
        args=request.args, kwargs=request.kwargs, headers=run.headers, function=request.spec.function,
    )  # fmt: skip


def _call_in_thread(info: StepInfo, function: Next, call: Invocation) -> Any:
    current_step.set(info)
    return function(call)


async def _job_of(threads: StepThreads, function: Callable[[], Any]) -> Any:
    """Call a function in a thread, in the context of the task; the thread is abandoned if the task is cancelled."""
    ended: asyncio.Future[tuple[Any, BaseException | None]] = asyncio.get_running_loop().create_future()

    def done(result: Any, error: BaseException | None) -> None:
        if not ended.done():
            ended.set_result((result, error))

    job = threads.submit(function, done)
    try:
        result, error = await ended
    except asyncio.CancelledError:
        threads.abandon(job)
        raise
    if error is not None:
        raise error
    return result
