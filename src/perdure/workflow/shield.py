"""A part of a workflow that is not to be interrupted."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable
from typing import TypeVar

R = TypeVar("R")


async def shielded(awaitable: Awaitable[R]) -> R:
    """Wait for something to its end. A cancellation that comes meanwhile is raised afterwards, its error the cause."""
    # Of the workflow's own loop, which replays what it does.
    part = asyncio.get_running_loop().create_task(_whole(awaitable))
    interrupted: asyncio.CancelledError | None = None
    try:
        while not part.done():
            try:
                await asyncio.wait([part])
            except asyncio.CancelledError as error:
                interrupted = interrupted or error
    finally:
        # The run may be let go of before the task has begun; nobody else would close what it was to wait for.
        if inspect.iscoroutine(awaitable) and inspect.getcoroutinestate(awaitable) == inspect.CORO_CREATED:
            awaitable.close()
    if interrupted is not None:
        raise interrupted from (None if part.cancelled() else part.exception())
    return part.result()


async def _whole(awaitable: Awaitable[R]) -> R:
    return await awaitable
