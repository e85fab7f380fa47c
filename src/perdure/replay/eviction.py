"""Ending a run's code without a trace.

Closing a coroutine runs the user's `finally` blocks and handlers, and dropping it prints warnings. So what is left of a run is ended by
throwing a private exception through it; durable operations that it calls meanwhile never resolve (see `Execution`), and what does not
end after a bounded number of throws is left alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from typing import Any

from perdure.core.errors import Evicted
from perdure.replay.loop import RunLoop

#: How often code may refuse to end before it is left alone.
MAX_THROWS = 8


def end_tasks(loop: RunLoop) -> bool:
    """End every task and generator of a run, the newest first; False if one would not."""
    loop.closed = True
    ended = True
    previous = asyncio._get_running_loop()
    asyncio._set_running_loop(loop)
    try:
        for task in reversed(list(loop.tasks)):
            task._log_destroy_pending = False  # it is dropped on purpose
            coroutine = task.get_coro()
            if not task.done() and coroutine is not None:
                ended &= _throw_through(coroutine)
        for generator in reversed(loop.generators):
            ended &= _throw_through(generator)
    finally:
        asyncio._set_running_loop(previous)
    return ended


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
