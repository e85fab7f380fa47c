"""Errors of asyncio in workflow code, said in terms of workflows."""

from __future__ import annotations

import inspect

from perdure.core.codec.failure import attempts_of
from perdure.errors import NotInWorkflow


def refusal_of(error: RuntimeError) -> NotInWorkflow | None:
    """Translate an error of asyncio that workflow code has met; None for other errors, and for those of steps."""
    text = str(error)
    if attempts_of(error) is not None:
        return None
    if "cannot be called from a running event loop" in text:
        _close_argument(error)
        return NotInWorkflow(
            f"a workflow runs in an event loop already, so {text.partition(' ')[0]} does not work in it; run the "
            "function as a step: `await ctx.step(function, ...)`, where replay does not run it again"
        )
    if "attached to a different loop" in text:
        return NotInWorkflow(
            "workflow code awaited something of another event loop, such as a future, a lock or a connection that was "
            "made outside; replay could not wait for it again; await it in a step: `await ctx.step(function, ...)`"
        )
    return None


def _close_argument(error: RuntimeError) -> None:
    """Close the coroutine that `asyncio.run` was given; otherwise Python warns first that it was never awaited."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is not None and trace.tb_frame.f_globals.get("__name__") == "asyncio.runners":
        for value in list(trace.tb_frame.f_locals.values()):
            if inspect.iscoroutine(value) and inspect.getcoroutinestate(value) == inspect.CORO_CREATED:
                value.close()
