"""Keeping one run's trouble to itself.

What happens to a run happens in callbacks of the worker's loop, where an exception would only be logged and leave the run held for ever. A
guarded method that raises sets its run aside instead; its neighbours go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol, TypeVar, TypeVarTuple


class Breakable(Protocol):
    """Something that can be set aside when it breaks."""

    def break_off(self, error: Exception) -> None:
        """Set it aside because of an error."""


A = TypeVarTuple("A")
B = TypeVar("B", bound=Breakable)


def guarded(method: Callable[[B, *A], None]) -> Callable[[B, *A], None]:
    """A method that never raises: its error sets the object aside. Its arguments go by position."""

    def call(self: B, *args: *A) -> None:
        try:
            method(self, *args)
        except Exception as error:
            self.break_off(error)

    return call


def runs(task: asyncio.Task[Any] | None) -> bool:
    """Whether the caller is executed by that task, rather than closed from outside because its loop is gone."""
    try:
        return task is not None and asyncio.current_task() is task
    except RuntimeError:
        return False


def is_end_of(task: asyncio.Task[Any] | None, error: BaseException) -> bool:
    """Whether an error that came out of user code is the end of the task that called it: cancelled, or closed with its loop."""
    if isinstance(error, asyncio.CancelledError):
        return task is None or task.cancelling() > 0
    return isinstance(error, GeneratorExit) and not runs(task)
