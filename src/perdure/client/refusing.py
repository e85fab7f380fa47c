"""The client's guard against workflow code.

The loop of a run cannot wait for a database, and replay would repeat the call. So every verb of the client refuses before it does anything.
"""

from __future__ import annotations

from perdure.errors import NotInWorkflow
from perdure.worker import in_workflow


def refuse_in_workflow() -> None:
    """Raise `NotInWorkflow` if the caller is workflow code."""
    if in_workflow():
        raise NotInWorkflow(
            "workflow code does not call the engine: replay would repeat the call. Start children and send messages through the context "
            "(`ctx.start`, `ctx.send`), or call the engine in a step: `await ctx.step(function, ...)`"
        )
