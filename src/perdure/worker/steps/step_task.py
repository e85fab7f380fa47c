"""Calls of async steps that make no task unless the step waits.

Most async steps return without waiting. A task, and the turn of the loop in which it begins, cost as much as all that
is recorded of such a step. So a step begins in a plain callback. It has a current task all the same: a `StepTask`,
which asyncio's own code makes only when the step waits, or when its code looks at more than the task's identity.
"""

from __future__ import annotations

import asyncio
from asyncio import isfuture
from asyncio.events import _get_running_loop
from asyncio.tasks import _enter_task, _leave_task
from collections.abc import Awaitable, Generator
from contextvars import Context
from types import CoroutineType, coroutine
from typing import Any, Final, Protocol

from perdure.workflow.runtime import StepRequest
from perdure.workflow.step import StepInfo, current_step


class CalledAttempt(Protocol):
    """An attempt whose function is called without a task."""

    operation: Any
    #: Until the function has ended.
    info: StepInfo | None
    #: Context variables of the function, until it has ended.
    context: Context | None
    #: Whether the function was called.
    begun: bool
    #: Whether the result is not needed.
    over: bool
    timed_out: Any
    #: The task of a function that waits.
    task: asyncio.Task[None] | None
    #: How the function has ended.
    result: Any
    error: BaseException | None

    def report_end(self, result: Any, error: BaseException | None) -> None:
        """Report the end of the function to the run."""


def is_executed_by(task: asyncio.Task[Any] | None) -> bool:
    """True if that task executes the caller; False if the coroutine is being closed because its loop is gone."""
    try:
        return task is not None and asyncio.current_task() is task
    except RuntimeError:
        return False


def is_end_of(task: asyncio.Task[Any] | None, error: BaseException) -> bool:
    """True if an error from user code is the end of the calling task: it was cancelled, or closed with its loop."""
    if isinstance(error, asyncio.CancelledError):
        return task is None or task.cancelling() > 0
    return isinstance(error, GeneratorExit) and not is_executed_by(task)


#: Not a class to type checkers, which know a coroutine as an awaitable alone.
_COROUTINE: Final[Any] = CoroutineType
#: A method of an imported object would be bound anew by each call.
_set_current_step: Final[Any] = current_step.set
#: Yielded by `call_steps` when a function has ended.
_ENDED: Final = object()


@coroutine
def call_steps() -> Generator[Any, Any, None]:
    """Call the functions of the attempts that are sent, one after the other; yields `_ENDED` after each.

    If a function waits, its future is yielded, and the generator serves that attempt only. The loop watch looks for
    its frame.
    """
    attempt: CalledAttempt = yield _ENDED
    while True:
        try:
            _set_current_step(attempt.info)
            request: StepRequest = attempt.operation.request
            if request.mutable:
                request = request.copied()
            function, kwargs = request.spec.function, request.kwargs
            # Without arguments by name, no dict is made for them.
            awaitable: Any = function(*request.args, **kwargs) if kwargs else function(*request.args)
            if type(awaitable) is not _COROUTINE:
                awaitable = _awaiting(awaitable)
            attempt.result = yield from awaitable
        except GeneratorExit as error:
            if attempt.task is not None and not is_executed_by(attempt.task):
                raise  # the function is being closed: its loop is gone
            attempt.error = error
        except asyncio.CancelledError:
            attempt.error = asyncio.CancelledError("the step was cancelled from inside")
        except BaseException as error:
            # All errors: SystemExit and KeyboardInterrupt would end the worker.
            attempt.error = error
        attempt = yield _ENDED


async def _awaiting(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


class BegunTask(asyncio.Task[None]):
    """The task of a step, as asyncio has made it."""

    __slots__ = ("attempt", "awaited", "caller")

    attempt: CalledAttempt
    caller: StepCaller
    #: What the function waits for; not set if it has never waited.
    awaited: Any


#: Attributes that other threads may read of a task that is not made, such as a debugger.
_SAFE: Final = frozenset({"__class__", "__dict__", "__doc__", "__module__", "attempt", "caller"})


class StepTask(BegunTask):
    """The task of a step that was not needed so far: it has an identity, and is made when anything else is asked."""

    __slots__ = ()

    def __getattribute__(self, name: str) -> Any:
        if _get_running_loop() is _caller_of(self).loop:
            make_task(self)
        elif name not in _SAFE:
            # Methods of a task that is not initialized may end the process.
            raise AttributeError(f"another thread asks for {name!r} of the task of a step that has not waited yet")
        return BegunTask.__getattribute__(self, name)

    # The interpreter calls these without a look at the attribute.

    def __await__(self) -> Generator[Any, None, None]:
        make_task(self)
        return BegunTask.__await__(self)

    __iter__ = __await__

    def __repr__(self) -> str:
        return f"<StepTask {_attempt_of(self).operation.location!r}>"


# Any other way to read them makes the task.
_attempt_of: Any = BegunTask.__dict__["attempt"].__get__
_caller_of: Any = BegunTask.__dict__["caller"].__get__
_new_task = StepTask.__new__


def make_task(task: StepTask) -> None:
    """Make the task of a step. It goes on at the next turn of the loop."""
    caller: StepCaller = _caller_of(task)
    attempt: CalledAttempt = _attempt_of(task)
    task.__class__ = BegunTask  # type: ignore[assignment] # of the same layout
    rest = _finish(task)
    # To its first wait, so that a cancellation before the next turn of the loop is thrown into it.
    rest.send(None)
    BegunTask.__init__(task, rest, loop=caller.loop, name=attempt.operation.location, context=attempt.context)


class StepCaller:
    """Calls the functions of steps, until one of them waits; that one has the caller to itself from then on."""

    __slots__ = ("_send", "loop", "steps")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        # Type checkers know the generator as an awaitable.
        self.steps: Any = call_steps()
        self._send = self.steps.send
        self._send(None)

    def call(self, attempt: CalledAttempt) -> bool:
        """Call the function of an attempt; False if it goes on in a task, to which this caller belongs then."""
        attempt.begun = True
        task = _new_task(StepTask)
        task.attempt = attempt
        task.caller = self
        loop = self.loop
        _enter_task(loop, task)
        try:
            context: Any = attempt.context
            awaited = context.run(self._send, attempt)
        finally:
            _leave_task(loop, task)
        if awaited is _ENDED:
            # They refer to the attempt; without the cycles it is freed at once.
            attempt.info = attempt.context = None
            return True
        attempt.task = task
        task.awaited = awaited
        if type(task) is StepTask:
            make_task(task)
        if attempt.over:
            task.cancel()
        return False


async def _finish(task: BegunTask) -> None:
    """Drive a function that waits to its end, in its task, and report the end."""
    if not await _drive(task):
        return
    attempt = task.attempt
    attempt.info = attempt.context = None
    error, attempt.error = attempt.error, None
    attempt.report_end(attempt.result if error is None else None, error)


@coroutine
def _drive(task: BegunTask) -> Generator[Any, Any, bool]:
    """Pass on what comes from the task, until the function has ended; False if it had ended before."""
    error: BaseException | None = None
    try:
        yield
    except BaseException as thrown:
        error = thrown
    try:
        awaited = task.awaited
    except AttributeError:
        return False
    steps = task.caller.steps
    if isinstance(error, asyncio.CancelledError) and isfuture(awaited) and awaited.cancel(*error.args):
        # As asyncio does once a task waits. The end of what it waits for is what the function sees.
        error = None
    elif error is None and (awaited is None or (isfuture(awaited) and awaited.done())):
        # This is the turn of the loop in which a task would go on.
        if awaited is not None:
            awaited._asyncio_future_blocking = False
        awaited = steps.send(None)
    while awaited is not _ENDED:
        if error is None:
            try:
                yield awaited
            except BaseException as thrown:
                error = thrown
        awaited = steps.send(None) if error is None else steps.throw(error)
        error = None
    return True
