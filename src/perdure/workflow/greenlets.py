"""Runs blocking workflow code: each task of a run that executes a `def` has a greenlet.

A blocking call hands an awaitable to the task, which awaits it as a coroutine would, and goes on with the result or the
error. So a `def` makes the same operations in the same order as the `async def` that it corresponds to. A greenlet is a
stack that is set aside while the task waits; it holds no thread. It ends with its task: the exception that ends the
coroutine of an evicted run is raised in the greenlet, too.

Only a process with a `def` workflow imports this module, which needs the extra `perdure[sync]`.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from traceback import clear_frames
from types import TracebackType
from typing import Any, TypeVar, cast

from greenlet import getcurrent, greenlet

from perdure.errors import Evicted, WorkflowError
from perdure.workflow.runtime import Runtime, run_blocking

T = TypeVar("T")


class EvictedGreenlet(Evicted, GeneratorExit):
    """Ends the code of an evicted run. Python drops a `GeneratorExit` that leaves a generator being finalized."""


class WorkflowGreenlet(greenlet):
    """The stack of one task."""

    #: Whether the run is evicted.
    is_evicted = False


async def drive(runtime: Runtime, function: Callable[[], T]) -> T:
    """Call a blocking function of a run in a greenlet, and await what it waits for."""
    code = WorkflowGreenlet(_run)
    # The context variables of the code are those of the task.
    code.gr_context = getcurrent().gr_context
    error: BaseException | None = None
    value: Any = None
    try:
        awaited = code.switch(runtime, function)
        while not code.dead:
            try:
                value = await awaited
            except Evicted:
                code.is_evicted, error = True, EvictedGreenlet()
            except BaseException as raised:
                error = _without_frame(raised)
            # Another greenlet of the thread may have resumed the task.
            code.parent = getcurrent()
            if error is None:
                awaited = code.switch(value)
            else:
                thrown, error = error, None
                awaited = code.throw(thrown)
    except BaseException as left:
        _drop_own_frames(left)
        raise
    if inspect.iscoroutine(awaited):
        awaited.close()
        raise WorkflowError(
            f"{getattr(function, '__qualname__', 'the function')} returned a coroutine, which a `def` workflow cannot "
            "await; make its functions `def`, or the workflow an `async def`"
        )
    return cast("T", awaited)


def _run(runtime: Runtime, function: Callable[[], T]) -> T:
    try:
        return run_blocking(runtime, function)
    except BaseException as error:
        current = getcurrent()
        if isinstance(current, WorkflowGreenlet) and current.is_evicted:
            # Generators that the frames have left in the middle end here, where their `finally` may still block.
            clear_frames(error.__traceback__)
        raise


def block(awaitable: Awaitable[T]) -> T:
    """Wait for an awaitable in the greenlet of a task. Raises `WorkflowError` outside of one."""
    current = getcurrent()
    if type(current) is not WorkflowGreenlet or current.parent is None:
        if inspect.iscoroutine(awaitable):
            awaitable.close()
        raise WorkflowError(
            "a blocking context was used outside of the `def` code of its workflow; in a coroutine, and in a greenlet "
            "of your own, nothing could wait for it"
        )
    return cast("T", current.parent.switch(awaitable))


def _without_frame(error: BaseException) -> BaseException:
    """An error to be raised in the code, without the frame of `drive` in its traceback."""
    trace = error.__traceback__
    return error.with_traceback(None if trace is None else trace.tb_next)


_OWN = frozenset({__file__, __file__.replace("greenlets", "blocking"), run_blocking.__code__.co_filename})


def _drop_own_frames(error: BaseException) -> None:
    """Leave the frames of blocking calls out of a traceback: an `await` has none."""
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        following = trace.tb_next
        while following is not None and following.tb_frame.f_code.co_filename in _OWN:
            following = following.tb_next
        trace.tb_next = following
        trace = following
