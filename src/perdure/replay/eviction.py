"""Ending a run's code without a trace.

Closing a coroutine runs the user's `finally` blocks and handlers, and dropping it prints warnings. So what is left of a run is ended by
throwing a private exception through it; durable operations that it calls meanwhile never resolve (see `Execution`), and what does not
end after a bounded number of throws is left alone for ever.
"""

from __future__ import annotations

import ctypes
from collections.abc import AsyncGenerator, Coroutine
from contextvars import copy_context
from typing import Any

from perdure.errors import Evicted
from perdure.replay.futures import RunTask
from perdure.replay.run_loop import RunLoop

#: How often code may refuse to end before it is left alone.
MAX_THROWS = 8


def end_tasks(loop: RunLoop, main: RunTask[Any] | None) -> bool:
    """End every task and generator of a run, the newest first and `main` last of all; False if one would not."""
    loop.closed = True
    if main is not None:
        loop.tasks = {main: None, **loop.tasks}
    if not loop.tasks and not loop.generators:
        return True
    # In a copy, because what cleanup code sets is not for the worker to see.
    return copy_context().run(_end_all, loop)


def _end_all(loop: RunLoop) -> bool:
    ended = True
    with loop.inside():
        for _ in range(MAX_THROWS):
            tasks, loop.tasks = loop.tasks, {}
            generators, loop.generators = loop.generators, []
            for task in reversed(tasks):
                ended &= _end_task(task)
            for generator, _ in reversed(generators):
                ended &= _throw_through(generator)
            # Cleanup code may have started more. Of a task that was never begun nothing runs, so this comes to an end.
            if not loop.tasks and not loop.generators:
                break
    return ended


def _end_task(task: Any) -> bool:
    task._log_destroy_pending = False  # it is dropped on purpose
    coroutine = task.get_coro()
    if task.done() or coroutine is None or _throw_through(coroutine):
        return True
    # Collected as garbage it would be closed, which it would refuse as loudly as Python can say. So it never is.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(coroutine))
    return False


def _throw_through(code: Any) -> bool:
    error = Evicted()
    thrower: Coroutine[Any, Any, Any] = code
    try:
        if isinstance(code, AsyncGenerator):
            thrower = code.athrow(error)
            thrower.send(None)
        for _ in range(MAX_THROWS):
            thrower.throw(error)
    except BaseException:  # whatever it raises, it has ended; that is all that is wanted of it
        return True
    return False
