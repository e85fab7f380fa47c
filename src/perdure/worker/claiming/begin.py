"""Runs that were just taken, begun together.

They share one look at the clocks. Where commits overlap they begin in parts, so that what the first of them do is under way while
the rest begin; where there is one at a time, together, because what begins together is written together. Each begins in a plain
callback of the loop, never inside a task.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable

from perdure.replay.drain_context import Around
from perdure.worker.commit.moment import Moment
from perdure.worker.run.kept import Kept

#: So many begin with one look at the clocks.
_AT_ONCE = 32


class Beginnings:
    """See the module."""

    def __init__(self, moment: Callable[[Around], Moment], *, in_parts: bool) -> None:
        self._moment = moment
        self._at_once = _AT_ONCE if in_parts else sys.maxsize
        self._waiting: list[Kept] = []

    def add(self, held: Kept) -> None:
        """Begin it soon."""
        self._waiting.append(held)
        if len(self._waiting) == 1:
            asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        part, self._waiting = self._waiting[: self._at_once], self._waiting[self._at_once :]
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._begin)
        with Around() as around:
            moment = self._moment(around)
            for held in part:
                held.begin(moment)
