"""Eviction: ending a run's code without side effects.

Closing a coroutine runs the user's `finally` blocks and handlers, and dropping it prints warnings. So a private
exception is thrown through what is left of a run. Durable operations that the code calls meanwhile never resolve, and
code that does not end after a bounded number of throws stays in memory for ever.
"""

from __future__ import annotations

import ctypes
from collections.abc import AsyncGenerator, Coroutine
from contextvars import copy_context
from typing import Any

from perdure.core.process_fork import suppress_pending_warning
from perdure.errors import Evicted
from perdure.replay.futures import RunTask
from perdure.replay.run_loop import RunLoop

#: Throws after which code that does not end stays in memory.
MAX_THROWS = 8


def end_tasks(loop: RunLoop, main: RunTask[Any] | None) -> bool:
    """End every task and generator of a run, the newest first and `main` last; False if one did not end."""
    loop.closed = True
    if main is not None:
        loop.tasks = {main: None, **loop.tasks}
    if not loop.tasks and not loop.generators:
        return True
    # In a copy of the context: what cleanup code sets must not reach the worker.
    return copy_context().run(_end_all, loop)


def end_code(loop: RunLoop, main: RunTask[Any]) -> bool:
    """End every task and generator of a run that goes on without them, with its undos; False if one did not end."""
    try:
        return end_tasks(loop, main)
    finally:
        loop.forget_tasks()
        loop.closed = False


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
            # Cleanup code may have started more. A task that has not begun runs no code, so this ends.
            if not loop.tasks and not loop.generators:
                break
    return ended


def _end_task(task: Any) -> bool:
    suppress_pending_warning(task)
    coroutine = task.get_coro()
    if task.done() or coroutine is None or _throw_through(coroutine):
        return True
    # The garbage collector would close it, and its refusal would be printed. So it is never collected.
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
    except BaseException:  # any exception means that the code has ended
        return True
    return False
