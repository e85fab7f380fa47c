"""What the loops of runs are drained in."""

from __future__ import annotations

import sys
from asyncio.events import _get_running_loop
from collections.abc import AsyncGenerator
from typing import Any


class Around:
    """The worker's loop, and where new asynchronous generators go.

    Finding out and setting that up takes as long as some steps do, so whoever drains many runs enters it once.
    """

    __slots__ = ("_hooks", "entered", "loop")

    def __init__(self) -> None:
        #: What runs while no run does.
        self.loop = _get_running_loop()
        self._hooks = sys.get_asyncgen_hooks()
        #: Whether new asynchronous generators are kept by the runs that begin them.
        self.entered = False  # equivalent: constant: nothing is drained before it is entered

    def __enter__(self) -> Around:
        sys.set_asyncgen_hooks(_hold, _keep)
        self.entered = True
        return self

    def __exit__(self, *_: object) -> None:
        self.entered = False
        sys.set_asyncgen_hooks(*self._hooks)


def _hold(generator: AsyncGenerator[Any, Any]) -> None:
    """Let the run hold it that begins it."""
    hold = getattr(_get_running_loop(), "hold_generator", None)
    if hold is not None:
        hold(generator)


def _keep(_: AsyncGenerator[Any, Any]) -> None:
    """Generators are held by the run, so nothing is left to finalize."""
