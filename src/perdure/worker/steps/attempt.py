"""One attempt at one step, on the worker's loop, in a thread or in a process."""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Callable, Mapping
from contextvars import Context, copy_context
from typing import Any

from msgspec import UNSET, UnsetType

from perdure.core.middleware import Invocation
from perdure.core.model.headers import Headers
from perdure.core.system import DUE, Cancellable, System
from perdure.errors import StepTimeout, UsageError, WorkflowError
from perdure.replay.operations import StepOperation
from perdure.worker.batched_calls import ResultRecipient, StepResults
from perdure.worker.steps.emit import EmitUsage
from perdure.worker.steps.processes import ProcessCall
from perdure.worker.steps.step_task import StepCaller, call_steps, is_executed_by
from perdure.worker.steps.threads import Job, StepThreads
from perdure.workflow.runtime import StepRequest
from perdure.workflow.scopes import current_scope
from perdure.workflow.step import StepInfo, current_step

#: Context of an operation that no workflow code has asked for.
NO_VARIABLES = Context()

#: Seconds that a cancelled async step has to end before it is abandoned.
CANCEL_PATIENCE = 5.0


class Attempt:
    """A call of a step's function. Ends exactly once: it returns, raises or times out; never after `cancel`."""

    __slots__ = (
        "__dict__", "_results", "_system", "begun", "context", "error", "info", "is_traced", "number", "operation",
        "over", "pending", "recipient", "result", "run_id", "started_at", "task", "timed_out",
    )  # fmt: skip

    # Class attributes: most attempts neither set nor read them, and one attempt is made for every step.
    _threads: StepThreads | None = None
    _job: Job | None = None
    _process: ProcessCall | None = None
    _emission: EmitUsage | None = None
    #: Whether an async function begins in a task, as one that is asked to stop before does. On Python 3.14, asyncio
    #: keeps lists of tasks by thread, and `StepTask` is not tried there.
    begins_in_task = sys.version_info >= (3, 14)
    #: Whether `begin` calls an async function without options as `start` does, so that it may be called instead.
    has_begin = sys.version_info < (3, 14)
    #: Whether the task waits for a function in a thread, which cannot be interrupted.
    waits_for_thread = False
    #: Interrupted attempts before this one. They count in its number, but not for the retry policy.
    interrupted = 0

    #: Of an async function, until it has ended.
    info: StepInfo | None
    #: Context variables of an async function, until it has ended.
    context: Context | None
    #: Result of a function that was called without a task.
    result: Any

    def __init__(
        self,
        operation: StepOperation,
        run_id: str,
        now: int,
        system: System,
        results: StepResults,
        recipient: ResultRecipient,
    ) -> None:
        self.operation = operation
        self.number = operation.attempts + 1
        self.started_at = now
        self.run_id = run_id
        self.recipient = recipient
        self._system = system
        self._results = results
        #: Whether the result is not needed any more, or has been handed over.
        self.over = False
        self.begun = False
        #: Timer of the timeout.
        self.pending: Cancellable | None = None
        self.timed_out: StepTimeout | None = None
        self.task: asyncio.Task[None] | None = None
        #: Error of a function that was called without a task.
        self.error: BaseException | None = None
        #: Whether `function_ended` is called when a function has ended that was called without a task.
        self.is_traced = False

    def begin(self, due: int) -> None:
        """Call an async function soon that has no options; `start` comes to the same."""
        self.info = StepInfo(self.run_id, self.operation.location, self.number, due, self)
        self.context = copy_context()
        self._results.call(self)

    def start(self, threads: StepThreads, run_deadline: int) -> None:
        """Call the function."""
        request = self.operation.request
        timeout = request.options.timeout
        due = run_deadline
        if timeout is not UNSET:
            due = min(due, self.started_at + int(timeout * 1e6))
        info = self._info(due)
        if request.spec.is_async:
            if self.begins_in_task:
                self.task = self._system.spawn(self.run(info), self.operation.location)
            else:
                self.info, self.context = info, copy_context()
                self._results.call(self)
        elif request.options.process is True:
            self._start_process(threads, info, timeout)
            return
        else:
            self._threads = threads
            self._job = threads.submit(lambda: _in_thread(info, request), lambda *end: self._thread_done(info, *end))
        if timeout is not UNSET:
            self.pending = self._system.call_later(timeout, lambda: self._time_out(timeout))

    def _info(self, due: int) -> StepInfo:
        """Information that the function can ask for."""
        return StepInfo(self.run_id, self.operation.location, self.number, due, self)

    def _start_process(self, threads: StepThreads, info: StepInfo, timeout: float | UnsetType) -> None:
        self._threads = threads
        loop = asyncio.get_running_loop()

        def begun() -> None:
            if timeout is not UNSET:
                loop.call_soon_threadsafe(self._limit, timeout)

        self._process = threads.processes.call(self.operation.request, info, begun)
        self._job = threads.submit(self._process.run, lambda *end: self._thread_done(info, *end))

    def _limit(self, timeout: float) -> None:
        if not self.over:
            self.pending = self._system.call_later(timeout, lambda: self._time_out(timeout))

    @property
    def is_on_loop(self) -> bool:
        """True if a task of the worker's loop executes the function."""
        return self.task is not None

    @property
    def is_in_thread(self) -> bool:
        """True if a thread of this process executes the function."""
        return self._job is not None and self._process is None

    def is_over(self) -> bool:
        """True if the result is not needed any more."""
        return self.over

    def emit(self, stream: str, value: object) -> None:
        """Emit an item. Called from any thread."""
        self.recipient.emit(self, stream, value)

    def credentials(self) -> Mapping[str, Any]:
        """Return the credentials of the run. Called from any thread."""
        return self.recipient.credentials()

    def headers(self) -> Headers:
        """Return the headers of the run. Called from any thread."""
        return self.recipient.headers()

    def run_fields(self) -> dict[str, object]:
        """Return fields of log records about the run. Called from any thread."""
        return self.recipient.run_fields()

    def heartbeat_at(self, now: int, monotonic: float) -> int:
        """Return the time of the last heartbeat, given the time on both clocks; 0: there was none."""
        return 0

    @property
    def emission(self) -> EmitUsage:
        """Counters of emitted items, made on first use because few steps emit."""
        if self._emission is None:
            self._emission = EmitUsage()
        return self._emission

    @property
    def may_wait(self) -> bool:
        """True if emitting may block until a turn has taken earlier items."""
        return True

    def cancel(self) -> None:
        """Stop the attempt; its result is not needed any more."""
        self.close()
        self.stop()

    def close(self) -> bool:
        """Close the attempt; True if it was open."""
        was_open = not self.over
        self.over = True
        if self.pending is not None:
            self.pending.cancel()
        return was_open

    async def run(self, info: StepInfo, awaitable: Any = None) -> None:
        """Call the function, or await what it returned in a thread, and report the end."""
        self.begun = True
        trace = self._results.trace
        if not trace.waiting[DUE]:
            trace.note(trace)
        current_step.set(info)
        try:
            if awaitable is None:
                request = self.operation.request
                if request.mutable:
                    request = request.copied()
                awaitable = request.spec.function(*request.args, **request.kwargs)
            result = await awaitable
        except GeneratorExit as error:
            if not is_executed_by(self.task):
                raise  # the coroutine is being closed: its loop is gone
            self.report_end(None, error)
        except asyncio.CancelledError:
            self.report_end(None, asyncio.CancelledError("the step was cancelled from inside"))
        except BaseException as error:
            # All errors: a task would pass SystemExit and KeyboardInterrupt on to its loop, which would end the worker.
            self.report_end(None, error)
        else:
            self.report_end(result, None)
        finally:
            if not trace.waiting[DUE]:
                trace.note(self)

    def function_ended(self, error: BaseException | None) -> None:
        """Note the end of the function, before the run hears of it."""

    def report_end(self, result: Any, error: BaseException | None) -> None:
        """Report the end of the function to the run, unless its result is not needed any more."""
        self.task = None  # the task's context refers to this attempt; without the cycle it is freed at once
        if self.over:
            return
        if self.timed_out is not None:
            result, error = None, self.timed_out
        self._results.add(self, result, error)

    def _thread_done(self, info: StepInfo, result: Any, error: BaseException | None) -> None:
        job, self._job = self._job, None
        if error is None and inspect.isawaitable(result) and not self.over:
            context = copy_context() if job is None else job.context
            self.task = context.run(self._system.spawn, self.run(info, result), self.operation.location)
        else:
            self.report_end(result, error)

    def _time_out(self, timeout: float) -> None:
        self.expire(StepTimeout(f"step {self.operation.location!r} took longer than its timeout of {timeout:g} s"))

    def expire(self, error: StepTimeout) -> None:
        """End the attempt with an error, whatever its function does."""
        if self.over:
            return
        self.timed_out = error
        if self.task is not None and self.begun:
            self.task.cancel()
            self.pending = self._system.call_later(CANCEL_PATIENCE, lambda: self.report_end(None, None))
            return
        # A thread goes on, but its result is not recorded; a task that has not begun never reports its end.
        self.stop()
        self.report_end(None, None)

    def stop(self) -> None:
        """Stop the function if it is a task or a process; a thread is abandoned."""
        if self.task is not None:
            self.task.cancel()
        elif self._job is not None and self._threads is not None:
            self._threads.abandon(self._job)
            if self._process is not None:
                self._process.kill()


def context_of_step(operation: StepOperation) -> Context:
    """Make the context of an attempt: the worker's variables, and over them those of the workflow code that called.

    Most workflows set none; `len(operation.context)` is 1 then, for the scope.
    """
    context = copy_context()
    for variable, value in operation.context.items():
        if variable is not current_scope:
            context.run(variable.set, value)
    return context


def _in_thread(info: StepInfo, request: StepRequest) -> Any:
    current_step.set(info)
    if request.mutable:
        request = request.copied()
    return request.spec.function(*request.args, **request.kwargs)


def call_function(function: Callable[..., Any], call: Invocation) -> Any:
    """Call a function that has middleware around it."""
    return function(*call.args, **call.kwargs)


#: Code that calls the functions of async steps on the loop, by which the loop watch finds them in a stack, and the
#: variable that has the attempt.
RUN_STEP = {Attempt.run.__code__: "self", call_steps.__code__: "attempt", StepCaller.call.__code__: "attempt"}
#: Code that calls the functions of steps.
_CALLERS = frozenset({*RUN_STEP, _in_thread.__code__, call_function.__code__})


def is_misuse(error: BaseException) -> bool:
    """Tell whether an error shows that the code is wrong, so that another attempt would only repeat it.

    That is a misuse of Perdure, such as a result that cannot be stored, or a call whose arguments do not fit the
    parameters of the step's function.
    """
    if isinstance(error, UsageError | WorkflowError):
        return True
    trace = error.__traceback__
    if type(error) is not TypeError or trace is None:
        return False
    while trace.tb_next is not None:
        trace = trace.tb_next
    return trace.tb_frame.f_code in _CALLERS
